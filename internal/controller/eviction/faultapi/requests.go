package faultapi

import (
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// Faults are the failures and when they end.
type Faults struct {
	Until time.Time
	// Lost, Unanswered and Refused are the probabilities that a request is lost before it is
	// carried out, is carried out and never answered, or is rejected.
	Lost, Unanswered, Refused float64
	// Slow is how late a request, and its answer, may be; SlowChance is the probability of being
	// late.
	Slow       time.Duration
	SlowChance float64
	// Down is an outage: no request arrives.
	DownFrom, DownTo time.Time
	// LostAnswers is how many of the next deletes lose their answers.
	LostAnswers int
}

const timeout = 2 * time.Second // after which the controller gives up a request

func (w *World) isFaulty() bool { return w.Now.Before(w.Faults.Until) }

func (w *World) isDown() bool {
	return !w.Now.Before(w.Faults.DownFrom) && w.Now.Before(w.Faults.DownTo)
}

// carryOut sends a request.
func (w *World) carryOut(action eviction.Action) {
	if w.Trace != nil {
		w.traceLine("%s", action)
	}

	switch a := action.(type) {
	case eviction.Record:
		if a.Cancels {
			w.Cancelled++
		}

	case eviction.ReadNode:
		w.sendRequest(a.Ticket, func() eviction.Answered { return w.readNode(a) })
	case eviction.ReadPod:
		w.sendRequest(a.Ticket, func() eviction.Answered { return w.readPod(a) })
	case eviction.ReadDevices:
		w.sendRequest(a.Ticket, func() eviction.Answered { return w.readDevices(a) })

	case eviction.WriteStatus:
		w.sendRequest(a.Ticket, func() eviction.Answered { return w.writeStatus(a) })
	case eviction.Mark:
		w.sendRequest(a.Ticket, func() eviction.Answered { return w.markPod(a) })

	case eviction.Delete:
		w.checkSent(a.Name, a.UID)
		if w.Faults.LostAnswers > 0 {
			w.Faults.LostAnswers--
			w.After(time.Millisecond, func() { w.deletePod(a) })
			w.failRequest(a.Ticket, timeout, eviction.Failed)
			return
		}
		w.sendRequest(a.Ticket, func() eviction.Answered { return w.deletePod(a) })
	case eviction.Evict:
		w.checkSent(a.Name, a.UID)
		w.sendRequest(a.Ticket, func() eviction.Answered { return eviction.Answered{Outcome: eviction.Busy} })
	case eviction.Annotate:
		w.sendRequest(a.Ticket, func() eviction.Answered { return w.annotateNode(a) })
	}
}

// sendRequest carries out the request and answers it, unless a fault prevents either. A request
// that was given up may still arrive.
func (w *World) sendRequest(ticket eviction.Ticket, do func() eviction.Answered) {
	there, back := w.drawBetween(500*time.Microsecond, 2*time.Millisecond), w.drawBetween(500*time.Microsecond, 2*time.Millisecond)
	outcome := eviction.OK
	if w.isDown() {
		outcome = eviction.Failed
		w.answerLater(ticket, there, func() eviction.Answered { return eviction.Answered{Outcome: outcome} })
		return
	}

	if w.isFaulty() {
		if w.withChance(w.Faults.SlowChance) {
			there += w.drawBetween(0, w.Faults.Slow)
		}
		if w.withChance(w.Faults.SlowChance) {
			back += w.drawBetween(0, w.Faults.Slow)
		}
		switch {
		case w.withChance(w.Faults.Lost):
			outcome = eviction.Failed
			w.failRequest(ticket, there+back, outcome)
			return
		case w.withChance(w.Faults.Refused):
			outcome = []eviction.Outcome{eviction.Refused, eviction.Busy, eviction.Conflict, eviction.Failed}[w.Rand.IntN(4)]
			w.failRequest(ticket, there+back, outcome)
			return
		case w.withChance(w.Faults.Unanswered):
			w.After(there, func() { do() })
			w.failRequest(ticket, back+w.drawBetween(0, timeout), eviction.Failed)
			return
		}
	}

	life := w.life
	w.After(there, func() {
		answer := do()
		if w.life == life {
			w.answerLater(ticket, back, func() eviction.Answered { return answer })
		}
	})
}

func (w *World) failRequest(ticket eviction.Ticket, wait time.Duration, outcome eviction.Outcome) {
	w.Refusals++
	w.noteFailed()
	w.answerLater(ticket, wait, func() eviction.Answered { return eviction.Answered{Outcome: outcome} })
}

// noteFailed makes every node's note doubtful for a while, regardless of which request failed.
func (w *World) noteFailed() {
	for _, n := range w.nodes {
		n.noteTrouble = w.Now
	}
}

func (w *World) answerLater(ticket eviction.Ticket, wait time.Duration, of func() eviction.Answered) {
	life := w.life
	w.After(wait, func() {
		if w.life == life {
			answer := of()
			answer.Ticket = ticket
			w.stepCore(answer)
		}
	})
}

func (w *World) readNode(a eviction.ReadNode) eviction.Answered {
	n := w.nodes[a.Node]
	if n == nil {
		return eviction.Answered{Outcome: eviction.Gone}
	}
	read := n.Node
	return eviction.Answered{Node: &read}
}

func (w *World) readPod(a eviction.ReadPod) eviction.Answered {
	p := w.pods[a.Name]
	if p == nil {
		return eviction.Answered{Outcome: eviction.Gone}
	}
	read := p.Pod
	return eviction.Answered{Pod: &read}
}

func (w *World) markPod(a eviction.Mark) eviction.Answered {
	p := w.pods[a.Name]
	switch {
	case p == nil:
		return eviction.Answered{Outcome: eviction.Gone}
	case p.UID != a.UID, a.ResourceVersion != "" && a.ResourceVersion != p.ResourceVersion:
		return eviction.Answered{Outcome: eviction.Conflict}
	}
	if !p.Marked {
		p.Marked, p.ResourceVersion = true, w.nextVersion()
		w.showPod(p)
	}
	read := p.Pod
	return eviction.Answered{Pod: &read}
}

func (w *World) deletePod(a eviction.Delete) eviction.Answered {
	p := w.pods[a.Name]
	if p != nil {
		p.Deletes = append(p.Deletes, w.Now)
	}
	switch {
	case p == nil:
		return eviction.Answered{Outcome: eviction.Gone}
	case a.UID != "" && p.UID != a.UID:
		return eviction.Answered{Outcome: eviction.Conflict}
	case p.refuse > 0 && !p.Terminating && w.isFaulty():
		p.refuse--
		w.traceLine("webhook refuses the delete of %s", p.UID)
		return eviction.Answered{Outcome: eviction.Refused}
	}

	if !p.Terminating {
		w.checkCarriedOut(p, a.UID)
		w.Deleted++
		w.traceLine("pod %s deleted", p.UID)
		w.Terminate(p)
	}
	return eviction.Answered{}
}

func (w *World) annotateNode(a eviction.Annotate) eviction.Answered {
	n := w.nodes[a.Node]
	switch {
	case n == nil:
		return eviction.Answered{Outcome: eviction.Gone}
	case n.ResourceVersion != a.ResourceVersion:
		return eviction.Answered{Outcome: eviction.Conflict}
	}
	n.Note = a.Note
	w.showNode(n)
	return eviction.Answered{}
}
