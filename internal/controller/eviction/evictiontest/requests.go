// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictiontest

import (
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/response"
)

// Faults configures the failures of the API server. With the zero Faults, it always responds.
type Faults struct {
	Until time.Time // end of random failures; later only outages cause failures
	// Lost, Unanswered and Refused are the probabilities that a request is lost before it is
	// carried out, is carried out without a response, or is refused.
	Lost, Unanswered, Refused float64
	// Slow is the maximum delay of a request, and of its response; SlowChance is the probability of
	// a delay.
	Slow       time.Duration
	SlowChance float64
	// DownFrom and DownTo bound an outage, in which no request arrives.
	DownFrom, DownTo time.Time
	// LostAnswers is the number of deletes, beginning with the next one, that are carried out but
	// whose responses are lost.
	LostAnswers int
}

// Requests are the controller's requests to the API. Each request is carried out after a delay, and
// its response is delivered after another delay, unless a fault prevents it. Every request of a
// running controller gets exactly one response, as required by eviction.Ticket; a lost request
// fails.
type Requests struct {
	world  *World
	Faults Faults

	// Respond, if set, returns the response to each request. It may call do to carry out the
	// request.
	Respond func(action eviction.Action, do func() eviction.Answered) eviction.Answered
	sending eviction.Action // the request being sent

	Deleted   int // deletes carried out
	Refusals  int // requests that failed
	Cancelled int // evictions reported as cancelled by the controller
}

const timeout = 2 * time.Second // limit for a request whose response is lost

// isFaulty reports whether requests may fail at random now.
func (r *Requests) isFaulty() bool { return r.world.Now.Before(r.Faults.Until) }

// isDown reports whether there is an outage now.
func (r *Requests) isDown() bool {
	return !r.world.Now.Before(r.Faults.DownFrom) && r.world.Now.Before(r.Faults.DownTo)
}

// carryOut sends a request. An Evict is always refused, as by a budget that never allows a
// disruption.
func (r *Requests) carryOut(action eviction.Action) {
	if r.world.Trace != nil {
		r.world.traceLine("%s", action)
	}
	r.sending = action

	switch a := action.(type) {
	case eviction.Record:
		if a.Cancels {
			r.Cancelled++
		}

	case eviction.ReadNode:
		r.sendRequest(a.Ticket, func() eviction.Answered { return r.readNode(a) })
	case eviction.ReadPod:
		r.sendRequest(a.Ticket, func() eviction.Answered { return r.readPod(a) })
	case eviction.ReadDevices:
		r.sendRequest(a.Ticket, func() eviction.Answered { return r.world.Devices.readDevices(a) })

	case eviction.WriteStatus:
		r.sendRequest(a.Ticket, func() eviction.Answered { return r.world.Devices.writeStatus(a) })
	case eviction.Mark:
		r.sendRequest(a.Ticket, func() eviction.Answered { return r.markPod(a) })

	case eviction.Delete:
		r.world.Truth.checkSent(a.Name, a.UID)
		if r.Faults.LostAnswers > 0 {
			r.Faults.LostAnswers--
			r.world.After(time.Millisecond, func() { r.deletePod(a) })
			r.failRequest(a.Ticket, timeout, response.Failed)
			return
		}
		r.sendRequest(a.Ticket, func() eviction.Answered { return r.deletePod(a) })
	case eviction.Evict:
		r.world.Truth.checkSent(a.Name, a.UID)
		r.sendRequest(a.Ticket, func() eviction.Answered { return eviction.Answered{Outcome: response.Busy} })
	case eviction.Annotate:
		r.sendRequest(a.Ticket, func() eviction.Answered { return r.annotateNode(a) })
	}
}

// sendRequest carries out the request and responds to it, unless a fault prevents either. A request
// may be carried out after the controller has been killed.
func (r *Requests) sendRequest(ticket response.Ticket, do func() eviction.Answered) {
	if carryOut, action := do, r.sending; r.Respond != nil {
		do = func() eviction.Answered { return r.Respond(action, carryOut) }
	}
	const least, most = 500 * time.Microsecond, 2 * time.Millisecond
	there, back := r.world.drawBetween(least, most), r.world.drawBetween(least, most)
	outcome := response.OK
	// The controller gets the error immediately, because the connection is refused.
	if r.isDown() {
		outcome = response.Failed
		r.answerLater(ticket, there, func() eviction.Answered { return eviction.Answered{Outcome: outcome} })
		return
	}

	if r.isFaulty() {
		if r.world.withChance(r.Faults.SlowChance) {
			there += r.world.drawBetween(0, r.Faults.Slow)
		}
		if r.world.withChance(r.Faults.SlowChance) {
			back += r.world.drawBetween(0, r.Faults.Slow)
		}
		switch {
		// The request never arrives, and fails because of a broken connection.
		case r.world.withChance(r.Faults.Lost):
			outcome = response.Failed
			r.failRequest(ticket, there+back, outcome)
			return
		case r.world.withChance(r.Faults.Refused):
			outcome = []response.Outcome{response.Refused, response.Busy, response.Conflict, response.Failed}[r.world.Rand.IntN(4)]
			r.failRequest(ticket, there+back, outcome)
			return
		// In the hardest case for a controller, the request is carried out but appears to have
		// failed.
		case r.world.withChance(r.Faults.Unanswered):
			r.world.After(there, func() { do() })
			r.failRequest(ticket, back+r.world.drawBetween(0, timeout), response.Failed)
			return
		}
	}

	life := r.world.Controller.life
	r.world.After(there, func() {
		// The request was already sent, so it is carried out even if the controller has been killed
		// in the meantime.
		answer := do()
		if r.world.Controller.life == life {
			r.answerLater(ticket, back, func() eviction.Answered { return answer })
		}
	})
}

// failRequest responds to a request that was not carried out, or appears not to have been.
func (r *Requests) failRequest(ticket response.Ticket, wait time.Duration, outcome response.Outcome) {
	r.Refusals++
	r.noteFailed()
	r.answerLater(ticket, wait, func() eviction.Answered { return eviction.Answered{Outcome: outcome} })
}

// noteFailed makes every node's note doubtful for a while, whatever the failed request was.
func (r *Requests) noteFailed() {
	for _, n := range r.world.nodes {
		n.noteTrouble = r.world.Now
	}
}

// answerLater responds after a while, unless the controller has been killed in the meantime.
func (r *Requests) answerLater(ticket response.Ticket, wait time.Duration, of func() eviction.Answered) {
	life := r.world.Controller.life
	r.world.After(wait, func() {
		if r.world.Controller.life == life {
			answer := of()
			answer.Ticket = ticket
			r.world.Controller.stepCore(answer)
		}
	})
}

// readNode, readPod, markPod, deletePod and annotateNode carry out requests on behalf of the API
// server.
func (r *Requests) readNode(a eviction.ReadNode) eviction.Answered {
	n := r.world.nodes[a.Node]
	if n == nil {
		return eviction.Answered{Outcome: response.Gone}
	}
	read := n.Node
	return eviction.Answered{Node: &read}
}

func (r *Requests) readPod(a eviction.ReadPod) eviction.Answered {
	p := r.world.pods[a.Name]
	if p == nil {
		return eviction.Answered{Outcome: response.Gone}
	}
	read := p.Pod
	return eviction.Answered{Pod: &read}
}

// markPod sets the condition if the pod has the UID and, if one is given, the version.
func (r *Requests) markPod(a eviction.Mark) eviction.Answered {
	p := r.world.pods[a.Name]
	switch {
	case p == nil:
		return eviction.Answered{Outcome: response.Gone}
	case p.UID != a.UID, a.ResourceVersion != "" && a.ResourceVersion != p.ResourceVersion:
		return eviction.Answered{Outcome: response.Conflict}
	}
	if !p.Marked {
		p.Marked, p.ResourceVersion = true, r.world.nextVersion()
		r.world.showPod(p)
	}
	read := p.Pod
	return eviction.Answered{Pod: &read}
}

// deletePod records every delete that arrives, and carries it out unless the UID differs or a
// webhook refuses.
func (r *Requests) deletePod(a eviction.Delete) eviction.Answered {
	p := r.world.pods[a.Name]
	if p != nil {
		p.Deletes = append(p.Deletes, r.world.Now)
	}
	switch {
	case p == nil:
		return eviction.Answered{Outcome: response.Gone}
	case a.UID != "" && p.UID != a.UID:
		return eviction.Answered{Outcome: response.Conflict}
	case p.refuse > 0 && !p.Terminating && r.isFaulty():
		p.refuse--
		r.world.traceLine("webhook refuses the delete of %s", p.UID)
		return eviction.Answered{Outcome: response.Refused}
	}

	if !p.Terminating {
		r.world.Truth.checkCarriedOut(p, a.UID)
		r.Deleted++
		r.world.traceLine("pod %s deleted", p.UID)
		r.world.Terminate(p)
	}
	return eviction.Answered{}
}

// annotateNode writes the note if the node still has that version.
func (r *Requests) annotateNode(a eviction.Annotate) eviction.Answered {
	n := r.world.nodes[a.Node]
	switch {
	case n == nil:
		return eviction.Answered{Outcome: response.Gone}
	case n.ResourceVersion != a.ResourceVersion:
		return eviction.Answered{Outcome: response.Conflict}
	}
	n.Note = a.Note
	r.world.showNode(n)
	return eviction.Answered{}
}
