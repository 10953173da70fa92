package eviction

import (
	"container/heap"
	"time"
)

const (
	// fresh is the maximum age of what was read when the delete is sent. If the API is slow it is
	// doubled within the attempt, so that slowness cannot stop an eviction.
	fresh = time.Second
	// confirmAfter is how long the watch may take to show that a pod whose delete was accepted is
	// terminating. After that the pod is read again.
	confirmAfter = 30 * time.Second
	// A pod that could not be deleted is retried after firstRetry, then after twice as long each
	// time, up to lastRetry, whatever the server asks for: once the cause is gone, an eviction is
	// at most that late. Thousands of such pods are no storm: Options.InFlight bounds the attempts,
	// and backOff spreads them. What a budget refuses is retried after budgetRetry at the earliest.
	firstRetry  = 100 * time.Millisecond
	lastRetry   = 5 * time.Second
	budgetRetry = 5 * time.Second
	// While reads fail, nothing is attempted. The API is asked again after firstPause, then after
	// twice as long each time, up to lastPause.
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// step is the request whose answer an attempt waits for.
type step int

const (
	readingNode   step = iota
	markingUnread      // marks the pod only if it is still the one that the watch showed
	readingPod
	marking
	deleting
	readingDevices
)

// attempt is one attempt to evict one pod: read its node, or what tells of its devices, read the
// pod, mark it, delete it. If the pod is still as the watch showed it, marking it on that condition
// replaces reading it.
type attempt struct {
	pod     *pod // nil: gone since
	step    step
	also    []*attempt // begun at the same moment on the same node: they share the reading of the node
	evicts  bool       // through the Eviction API
	readAt  time.Time  // when the reading of the node, or of the devices, began
	rereads int
	held    []Held   // the node's taints as read, none if it is gone
	found   devices  // as read
	seeks   bool     // devices were read, or are
	rules   []string // that asked the pod to go when its delete was sent
	live    Pod      // the pod as last known
	unread  bool     // live is what a watch showed
	asked   bool     // the mark was requested: whatever the answer, the delete goes on
}

// beginAttempts starts as many attempts as are due and may be in flight.
func (c *Core) beginAttempts(now time.Time) {
	reading := map[*node]*attempt{}
	for len(c.queue) > 0 && c.underway < c.options.InFlight && !now.Before(c.pausedUntil) {
		p := c.queue[0]
		if now.Before(p.nextAttempt()) {
			return
		}

		heap.Pop(&c.queue)
		if p.tries > 0 {
			c.stats.Retries++
		}

		a := &attempt{pod: p, live: p.Pod, unread: true, evicts: c.options.Budgets && !c.budgetsOver(now, p)}
		p.attempt = a
		c.underway++
		switch first := reading[p.on]; {
		case c.breakSafeguards.noLiveRead, c.breakSafeguards.noDeviceRead && !p.byNode.By(now):
			a.seeks = !p.byNode.By(now)
			c.deletePod(now, a)
		case !p.byNode.By(now):
			c.readDevices(now, a)
		case first != nil:
			a.step, a.readAt = readingNode, now
			first.also = append(first.also, a)
		default:
			c.readNode(now, a)
			reading[p.on] = a
		}
	}
}

func (c *Core) budgetsOver(now time.Time, p *pod) bool {
	return c.options.BudgetsFor > 0 && !now.Before(p.due.At.Add(c.options.BudgetsFor))
}

func (c *Core) awaitAnswer(a *attempt, step step) Ticket {
	ticket := c.issueTicket()
	a.step = step
	c.attempts[ticket] = a
	return ticket
}

func (c *Core) readNode(now time.Time, a *attempt) {
	a.readAt = now
	c.addAction(ReadNode{Ticket: c.awaitAnswer(a, readingNode), Node: a.pod.on.name})
}

// readDevices reads what asks the pod to go.
func (c *Core) readDevices(now time.Time, a *attempt) {
	a.readAt, a.seeks, a.held = now, true, nil
	read := c.devices.evidenceFor(&a.pod.Pod, now)
	read.Ticket, read.Pod = c.awaitAnswer(a, readingDevices), a.pod.Name
	c.addAction(read)
}

func (c *Core) readPod(a *attempt) {
	c.addAction(ReadPod{Ticket: c.awaitAnswer(a, readingPod), Name: a.pod.Name})
}

func (c *Core) markPod(a *attempt, step step) {
	a.asked = true
	m := Mark{Ticket: c.awaitAnswer(a, step), Name: a.pod.Name, UID: a.pod.UID, Observed: a.live.Observed, Device: a.seeks}
	if step == markingUnread {
		m.ResourceVersion = a.live.ResourceVersion
	}
	c.addAction(m)
}

func (c *Core) routeAnswer(now time.Time, answer Answered) {
	if n, ok := c.noting[answer.Ticket]; ok {
		delete(c.noting, answer.Ticket)
		c.noteWritten(now, n)
		return
	}
	if r, ok := c.telling[answer.Ticket]; ok {
		delete(c.telling, answer.Ticket)
		c.statusWritten(now, r, answer)
		return
	}

	a := c.attempts[answer.Ticket]
	delete(c.attempts, answer.Ticket)
	if a == nil {
		return
	}

	others := a.also
	a.also = nil
	c.goOn(now, a, answer)
	for _, other := range others {
		c.goOn(now, other, answer)
	}
}

// goOn takes an attempt to its next step.
func (c *Core) goOn(now time.Time, a *attempt, answer Answered) {
	if a.step == deleting && answer.Outcome == OK {
		c.countEvicted(now, a.rules)
	}
	if a.pod == nil {
		c.underway--
		return
	}

	switch a.step {
	case readingNode:
		c.nodeRead(now, a, answer)
	case readingDevices:
		c.devicesRead(now, a, answer)
	case markingUnread:
		c.markedUnread(now, a, answer)
	case readingPod:
		c.podRead(now, a, answer)
	case marking:
		if answer.Outcome == OK && answer.Pod != nil {
			a.live = *answer.Pod
		}
		if answer.Outcome == Gone {
			c.acceptDelete(now, a)
			return
		}
		c.deletePod(now, a)
	case deleting:
		c.podDeleted(now, a, answer)
	}
}

func (c *Core) nodeRead(now time.Time, a *attempt, answer Answered) {
	switch answer.Outcome {
	case OK:
		known := a.pod.on
		if known.uid != answer.Node.UID {
			known = &node{}
		}
		a.held = c.recordTaints(now, known, *answer.Node, true)
	case Gone:
		a.held = nil
	default:
		c.retryRead(now, a, answer)
		return
	}

	c.unanswered, c.pausedUntil = 0, time.Time{}
	switch {
	case c.stillDue(a):
		c.reasonRead(now, a)
	case a.pod.byDevice.By(now):
		c.readDevices(now, a)
	default:
		c.avertDelete(now, a)
	}
}

func (c *Core) devicesRead(now time.Time, a *attempt, answer Answered) {
	if answer.Outcome != OK {
		c.retryRead(now, a, answer)
		return
	}
	c.unanswered, c.pausedUntil = 0, time.Time{}
	a.found = c.foundOf(now, answer.Devices)
	if !c.stillDue(a) {
		c.avertDelete(now, a)
		return
	}
	c.reasonRead(now, a)
}

// reasonRead goes on after the reading of the node or the devices has shown that the pod has to go.
func (c *Core) reasonRead(now time.Time, a *attempt) {
	if a.unread && !a.evicts && !a.asked && !a.live.Marked && a.live.ResourceVersion != "" && a.rereads == 0 {
		c.markPod(a, markingUnread)
		return
	}
	c.readPod(a)
}

func (c *Core) markedUnread(now time.Time, a *attempt, answer Answered) {
	switch answer.Outcome {
	case OK:
		a.live, a.unread = *answer.Pod, false
		c.deleteIfDue(now, a)
	case Gone:
		c.acceptDelete(now, a)
	case Conflict: // it changed since the watch showed it: the mark is requested again
		a.asked = false
		c.readPod(a)
	default:
		c.readPod(a)
	}
}

func (c *Core) podRead(now time.Time, a *attempt, answer Answered) {
	switch {
	case answer.Outcome == Gone, answer.Outcome == OK && (answer.Pod.UID != a.pod.UID || answer.Pod.Terminating):
		c.acceptDelete(now, a)
		return
	case answer.Outcome != OK:
		c.retryRead(now, a, answer)
		return
	}

	a.live, a.unread = *answer.Pod, false
	if a.live.Marked || a.asked || a.evicts {
		c.deleteIfDue(now, a)
		return
	}
	if !c.stillDue(a) {
		c.avertDelete(now, a)
		return
	}
	c.markPod(a, marking)
}

// stillDue decides from the live state alone, as of the reading of the node: a deadline that has
// passed since may be one that the node no longer sets.
func (c *Core) stillDue(a *attempt) bool {
	return c.liveDue(a).By(a.readAt)
}

func (c *Core) liveDue(a *attempt) Due {
	if a.seeks {
		due, _ := a.found.deadlineOf(&a.live)
		return due
	}
	return Deadline(a.live.Tolerations, c.boundAt(a.readAt, a.pod, &a.live), a.held)
}

// causeOf is the deadline that the attempt is for.
func (a *attempt) causeOf() Due {
	if a.seeks {
		return a.pod.byDevice
	}
	return a.pod.byNode
}

func (c *Core) deleteIfDue(now time.Time, a *attempt) {
	if !c.stillDue(a) {
		c.avertDelete(now, a)
		return
	}
	c.deletePod(now, a)
}

// deletePod sends the delete if what was read is fresh, and otherwise reads again.
func (c *Core) deletePod(now time.Time, a *attempt) {
	if now.Sub(a.readAt) > fresh<<min(a.rereads, 6) && !a.readAt.IsZero() {
		a.rereads++
		if a.seeks {
			c.readDevices(now, a)
		} else {
			c.readNode(now, a)
		}
		return
	}

	p := a.pod
	if a.seeks {
		a.rules = p.asked
	}

	if !p.marked {
		p.marked = true
		c.addAction(Record{Name: p.Name, UID: p.UID, Device: a.seeks})
	}

	uid := p.UID
	if c.breakSafeguards.noUID {
		uid = ""
	}

	ticket := c.awaitAnswer(a, deleting)
	if a.evicts {
		c.addAction(Evict{Ticket: ticket, Name: p.Name, UID: uid, Due: a.causeOf()})
		return
	}
	c.addAction(Delete{Ticket: ticket, Name: p.Name, UID: uid, Due: a.causeOf()})
}

func (c *Core) podDeleted(now time.Time, a *attempt, answer Answered) {
	switch {
	case answer.Outcome == OK, answer.Outcome == Gone, c.breakSafeguards.noRetry:
		c.acceptDelete(now, a)
	case a.evicts && answer.Outcome == Busy:
		c.retryLater(now, a, max(answer.RetryAfter, budgetRetry))
	default: // Conflict is another UID: the next try reads so
		c.retryLater(now, a, min(answer.RetryAfter, lastRetry))
	}
}

// acceptDelete ends an attempt after which the pod is terminating, or gone. The watch will show
// that; if it does not, the pod is read again.
func (c *Core) acceptDelete(now time.Time, a *attempt) {
	c.underway--
	p := a.pod
	p.attempt, p.accepted, p.cancels = nil, true, false
	p.notYet = now.Add(confirmAfter)
	c.enqueuePod(p)
}

// avertDelete ends an attempt that the live state stopped. The watch lags behind, and what it will
// show decides. By now what was read may be outdated as well, so it is read again soon, and no
// later than at its own deadline.
func (c *Core) avertDelete(now time.Time, a *attempt) {
	c.stats.Averted++
	p := a.pod
	p.tries++
	at := now.Add(backOff(p.tries, firstRetry, lastRetry, string(p.UID)))
	if due := c.liveDue(a); !due.Stays() && due.At.After(now) {
		at = earlierOf(at, due.At)
	}
	c.endAttempt(a, at)
}
