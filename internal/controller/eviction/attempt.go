package eviction

import (
	"container/heap"
	"time"

	"github.com/berth-k8s/berth/internal/ask"
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
	// and ask.Backoff spreads them. A pod refused by a budget is retried after budgetRetry at the
	// earliest.
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

// evictor carries evictions through, an attempt at a time for each pod.
//
// What a pod waits for is in exactly one place: its deadline or back-off in deadlines.queue, or an
// attempt, which pod.attempt names and which waits in attempts for one answer, by itself or among
// the also of another. An attempt ends in one of three ways: acceptDelete, avertDelete, or
// endAttempt with a time for the next one. None drops the pod: only a watch that shows it gone ends
// an entry.
type evictor struct {
	options   Options
	broke     *safeguards
	out       *outbox
	mirror    *mirror
	devices   *deviceMirror
	dating    dating
	deadlines *deadlines
	statuses  *ruleStatuses

	attempts map[Ticket]*attempt // attempts that wait for an answer
	// underway counts the attempts that were begun and are not over, those of pods that are gone
	// included: their requests are still in flight.
	underway         int
	pause            pause
	retries, averted int // of Stats
}

// next returns when the next attempt begins, if an answer is not needed before. Not ok: there is
// none to begin, or all slots are taken, and the next answer starts it.
func (e *evictor) next() (at time.Time, ok bool) {
	if len(e.deadlines.queue) == 0 || e.underway >= e.options.InFlight {
		return time.Time{}, false
	}
	return laterOf(e.deadlines.queue[0].nextAttempt(), e.pause.until), true
}

// beginAttempts starts as many attempts as are due and may be in flight, the one that is due first
// before the others. Pods of one node that are due together share the reading of the node: when a
// node with a hundred pods is tainted, it is read once.
func (e *evictor) beginAttempts(now time.Time) {
	reading := map[*node]*attempt{}
	for len(e.deadlines.queue) > 0 && e.underway < e.options.InFlight && !now.Before(e.pause.until) {
		p := e.deadlines.queue[0]
		if now.Before(p.nextAttempt()) {
			return
		}

		// From here the attempt holds the pod; see evictor for the invariant.
		heap.Pop(&e.deadlines.queue)
		if p.tries > 0 {
			e.retries++
		}

		a := &attempt{pod: p, live: p.Pod, unread: true, evicts: e.options.Budgets && !e.budgetsOver(now, p)}
		p.attempt = a
		e.underway++
		switch first := reading[p.on]; {
		case e.broke.noLiveRead, e.broke.noDeviceRead && !p.byNode.By(now):
			a.seeks = !p.byNode.By(now)
			e.deletePod(now, a)
		case !p.byNode.By(now):
			e.readDevices(now, a)
		case first != nil:
			a.step, a.readAt = readingNode, now
			first.also = append(first.also, a)
		default:
			e.readNode(now, a)
			reading[p.on] = a
		}
	}
}

// budgetsOver reports whether the pod is overdue by so much that budgets are no longer asked: an
// operator who sets BudgetsFor prefers a broken budget to a pod that stays on a tainted node.
func (e *evictor) budgetsOver(now time.Time, p *pod) bool {
	return e.options.BudgetsFor > 0 && !now.Before(p.due.At.Add(e.options.BudgetsFor))
}

// awaitAnswer gives the attempt's next request its ticket. An attempt waits for one answer at a
// time, so it stands in attempts once.
func (e *evictor) awaitAnswer(a *attempt, step step) Ticket {
	ticket := e.out.issueTicket()
	a.step = step
	e.attempts[ticket] = a
	return ticket
}

// readNode reads the node's taints live. The age of what is read counts from the request, not from
// the answer: the API may have read it at any moment in between.
func (e *evictor) readNode(now time.Time, a *attempt) {
	a.readAt = now
	e.out.add(ReadNode{Ticket: e.awaitAnswer(a, readingNode), Node: a.pod.on.name})
}

// readDevices reads what asks the pod to go.
func (e *evictor) readDevices(now time.Time, a *attempt) {
	a.readAt, a.seeks, a.held = now, true, nil
	read := e.devices.seen.evidenceFor(&a.pod.Pod, now)
	read.Ticket, read.Pod = e.awaitAnswer(a, readingDevices), a.pod.Name
	e.out.add(read)
}

// readPod reads the pod live, where its mark cannot be made conditional on what the watch showed.
func (e *evictor) readPod(a *attempt) {
	e.out.add(ReadPod{Ticket: e.awaitAnswer(a, readingPod), Name: a.pod.Name})
}

// markPod requests the condition DisruptionTarget. It is requested once for an attempt: whatever
// the answer, the delete follows, since a pod must not stay because its status cannot be written.
func (e *evictor) markPod(a *attempt, step step) {
	a.asked = true
	m := Mark{Ticket: e.awaitAnswer(a, step), Name: a.pod.Name, UID: a.pod.UID, Observed: a.live.Observed, Device: a.seeks}
	if step == markingUnread {
		m.ResourceVersion = a.live.ResourceVersion
	}
	e.out.add(m)
}

// deleteIfDue goes on after the last reading of the pod.
func (e *evictor) deleteIfDue(now time.Time, a *attempt) {
	if !e.stillDue(a) {
		e.avertDelete(now, a)
		return
	}
	e.deletePod(now, a)
}

// deletePod sends the delete if what was read is fresh, and otherwise reads again. What counts as
// fresh doubles with each reading, up to 64 s, so that an API that answers slowly delays an
// eviction and cannot prevent it.
func (e *evictor) deletePod(now time.Time, a *attempt) {
	if now.Sub(a.readAt) > fresh<<min(a.rereads, 6) && !a.readAt.IsZero() {
		a.rereads++
		if a.seeks {
			e.readDevices(now, a)
		} else {
			e.readNode(now, a)
		}
		return
	}

	p := a.pod
	if a.seeks {
		a.rules = p.asked
	}

	if !p.marked {
		p.marked = true
		e.out.add(Record{Name: p.Name, UID: p.UID, Device: a.seeks})
	}

	// The UID protects a pod of the same name that was created meanwhile. kube-controller-manager
	// deletes by name.
	uid := p.UID
	if e.broke.noUID {
		uid = ""
	}

	ticket := e.awaitAnswer(a, deleting)
	if a.evicts {
		e.out.add(Evict{Ticket: ticket, Name: p.Name, UID: uid, Due: a.causeOf()})
		return
	}
	e.out.add(Delete{Ticket: ticket, Name: p.Name, UID: uid, Due: a.causeOf()})
}

// podDeleted ends an attempt by the answer to its delete. A server that is busy says when to come
// back, but no answer makes an eviction wait longer than lastRetry, except one that comes from a
// budget. kube-controller-manager gives up after five tries, 10 ms apart, and the pod stays until
// something about it changes.
func (e *evictor) podDeleted(now time.Time, a *attempt, answer Answered) {
	switch {
	case answer.Outcome == OK, answer.Outcome == Gone, e.broke.noRetry:
		e.acceptDelete(now, a)
	case a.evicts && answer.Outcome == Busy:
		e.retryLater(now, a, max(answer.RetryAfter, budgetRetry))
	default: // Conflict is another UID: the next try reads so
		e.retryLater(now, a, min(answer.RetryAfter, lastRetry))
	}
}

// acceptDelete ends an attempt after which the pod is terminating, or gone. The watch will show
// that; if it does not within confirmAfter, the pod is due again, and is read.
func (e *evictor) acceptDelete(now time.Time, a *attempt) {
	e.underway--
	p := a.pod
	p.attempt, p.accepted, p.cancels = nil, true, false
	p.notYet = now.Add(confirmAfter)
	e.deadlines.enqueuePod(p)
}

// avertDelete ends an attempt that the live state stopped. The watch lags behind, and what it will
// show decides. By now what was read may be outdated as well, so it is read again soon, and no
// later than at its own deadline.
func (e *evictor) avertDelete(now time.Time, a *attempt) {
	e.averted++
	p := a.pod
	p.tries++
	at := now.Add(ask.Backoff{First: firstRetry, Last: lastRetry}.After(p.tries, string(p.UID)))
	if due := e.liveDue(a); !due.Stays() && due.At.After(now) {
		at = earlierOf(at, due.At)
	}
	e.endAttempt(a, at)
}
