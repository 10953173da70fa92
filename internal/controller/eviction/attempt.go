// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"container/heap"
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

const (
	// fresh is the maximum age of a read when the delete is sent. Each repeated read of an attempt
	// doubles the maximum, so that a slow API cannot prevent an eviction.
	fresh = time.Second
	// confirmAfter is the time within which the watch must show a pod as terminating after an
	// accepted delete. After that, a new attempt begins.
	confirmAfter = 30 * time.Second
	// A failed deletion is retried after firstRetry, then after twice as long each time, up to
	// lastRetry. A longer pause requested by the server is cut to lastRetry, so an eviction follows
	// within lastRetry after its obstacle is removed. Thousands of failing pods do not flood the
	// API server: Options.InFlight bounds the attempts, and pacing.Backoff spreads them. A pod
	// refused by a budget is retried after budgetRetry at the earliest.
	firstRetry  = 100 * time.Millisecond
	lastRetry   = 5 * time.Second
	budgetRetry = 5 * time.Second
	// After a failed read, all attempts pause, for firstPause at first, then for twice as long each
	// time. The limit lastPause is short, so that due pods are evicted soon after an outage. The
	// failed read is repeated after firstRetry, then with pauses that grow to lastRetry.
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// step is the request an attempt waits for.
type step int

const (
	readingNode   step = iota
	markingUnread      // marks the pod only if it has not changed since it was observed
	readingPod
	marking
	deleting
	readingDevices
)

// attempt is one attempt to evict one pod: it reads the pod's node or device objects, reads the
// pod, marks it, and deletes it. Usually the read of the pod is skipped, because a mark that
// succeeds only if the pod is unchanged serves as a read.
type attempt struct {
	attemptRecord
	pod   *pod       // nil: deleted since the attempt began
	also  []*attempt // attempts begun at the same time for the same node; they share its read
	found devices    // the device objects as read
}

// attemptRecord is the part of an attempt's state that Knowledge stores unchanged.
type attemptRecord struct {
	Step    step
	Evicts  bool      // the pod is evicted through the Eviction API
	ReadAt  time.Time // start of the read of the node or of the devices
	Rereads int
	Held    []Held   // the node's taints as read; empty if the node no longer exists
	Seeks   bool     `json:",omitempty"` // the attempt has read the devices, or is reading them
	Rules   []string `json:",omitempty"` // rules that evicted the pod when its delete was sent
	Live    Pod      // the pod as last read, or as last observed
	Unread  bool     // Live was observed by a watch, and not read
	Asked   bool     // the mark was requested; the delete follows regardless of the response
}

// evictor carries out evictions, with one attempt at a time per pod.
//
// A pod with a deadline is in exactly one place: in deadlines.queue, waiting for its deadline or
// back-off, or in the attempt named by pod.attempt. The attempt is in attempts while it waits for a
// response, directly or in the also list of another attempt. An attempt ends with acceptDelete,
// with avertDelete, or with endAttempt and the time of the next attempt. None of these drops the
// pod, which is forgotten only when the watch delivers its deletion.
type evictor struct {
	options   Options
	out       *outbox
	mirror    *mirror
	devices   *deviceMirror
	dating    dating
	deadlines *deadlines
	statuses  *ruleStatuses

	attempts map[response.Ticket]*attempt // attempts with a request in flight
	// underway counts unfinished attempts, including those of deleted pods: their requests are
	// still in flight.
	underway         int
	pause            pause
	retries, averted int // of Stats
}

// next returns the time at which the next attempt begins. ok is false if the queue is empty, or if
// all slots are taken, so that the next attempt must wait for a response.
func (e *evictor) next() (at time.Time, ok bool) {
	if len(e.deadlines.queue) == 0 || e.underway >= e.options.InFlight {
		return time.Time{}, false
	}
	return pacing.Later(e.deadlines.queue[0].nextAttempt(), e.pause.until), true
}

// beginAttempts starts as many due attempts as slots are available, in order of their deadlines.
// Due pods of one node share the read of the node: when a node with a hundred pods is tainted, it
// is read once.
func (e *evictor) beginAttempts(now time.Time) {
	reading := map[*node]*attempt{}
	for len(e.deadlines.queue) > 0 && e.underway < e.options.InFlight && !now.Before(e.pause.until) {
		p := e.deadlines.queue[0]
		if now.Before(p.nextAttempt()) {
			return
		}

		// A read of the node has failed recently, so the pod waits for the node's back-off.
		if p.byNode.IsDue(now) && !p.node.Reads.Ready(now) {
			p.NotYet = p.node.Reads.Next
			e.deadlines.enqueuePod(p)
			continue
		}

		// From here the attempt holds the pod; see evictor for the invariant.
		heap.Pop(&e.deadlines.queue)
		if p.Tries > 0 {
			e.retries++
		}

		// Budgets are bypassed once the pod is so overdue: by setting BudgetsFor, an operator
		// prefers a violated budget to a pod that stays on a tainted node.
		evicts := e.options.Budgets && (e.options.BudgetsFor <= 0 || now.Before(p.Due.At.Add(e.options.BudgetsFor)))
		a := &attempt{pod: p, attemptRecord: attemptRecord{Live: p.Pod, Unread: true, Evicts: evicts}}
		p.attempt = a
		e.underway++
		switch first := reading[p.node]; {
		case !p.byNode.IsDue(now):
			e.readDevices(now, a)
		case first != nil:
			a.Step, a.ReadAt = readingNode, now
			first.also = append(first.also, a)
		default:
			e.readNode(now, a)
			reading[p.node] = a
		}
	}
}

// awaitAnswer issues the ticket of the attempt's next request. An attempt waits for one response at
// a time, so it is in attempts once.
func (e *evictor) awaitAnswer(a *attempt, step step) response.Ticket {
	ticket := e.out.issueTicket()
	a.Step = step
	e.attempts[ticket] = a
	return ticket
}

// readNode reads the node's taints live. The age of the result counts from the request and not from
// the response, because the API server may have read the node at any moment in between.
func (e *evictor) readNode(now time.Time, a *attempt) {
	a.ReadAt = now
	e.out.add(ReadNode{Ticket: e.awaitAnswer(a, readingNode), Node: a.pod.node.Name})
}

// readDevices reads the device objects that require the eviction.
func (e *evictor) readDevices(now time.Time, a *attempt) {
	a.ReadAt, a.Seeks, a.Held = now, true, nil
	read := e.devices.seen.evidenceFor(&a.pod.Pod, now)
	read.Ticket, read.Pod = e.awaitAnswer(a, readingDevices), a.pod.Name
	e.out.add(read)
}

// readPod reads the pod live. It is called if the read cannot be replaced by a mark conditional on
// the observed version.
func (e *evictor) readPod(a *attempt) {
	e.out.add(ReadPod{Ticket: e.awaitAnswer(a, readingPod), Name: a.pod.Name})
}

// markPod requests the condition DisruptionTarget. It is requested once per attempt, and a second
// time only after a conflict. The delete follows whatever the response, since a pod must not stay
// because its status cannot be written.
func (e *evictor) markPod(a *attempt, step step) {
	a.Asked = true
	m := Mark{Ticket: e.awaitAnswer(a, step), Name: a.pod.Name, UID: a.pod.UID, Observed: a.Live.Observed, Device: a.Seeks}
	if step == markingUnread {
		m.ResourceVersion = a.Live.ResourceVersion
	}
	e.out.add(m)
}

// deleteIfDue continues after the last read of the pod.
func (e *evictor) deleteIfDue(now time.Time, a *attempt) {
	if !e.stillDue(a) {
		e.avertDelete(now, a)
		return
	}
	e.deletePod(now, a)
}

// deletePod sends the delete if the reads are fresh, and otherwise repeats them. The maximum age of
// reads doubles with each repetition, up to 64 s, so that a slow API delays an eviction but cannot
// prevent it.
func (e *evictor) deletePod(now time.Time, a *attempt) {
	if now.Sub(a.ReadAt) > fresh<<min(a.Rereads, 6) && !a.ReadAt.IsZero() {
		a.Rereads++
		if a.Seeks {
			e.readDevices(now, a)
		} else {
			e.readNode(now, a)
		}
		return
	}

	p := a.pod
	if a.Seeks {
		a.Rules = p.asked
	}

	if !p.Recorded {
		p.Recorded = true
		e.out.add(Record{Name: p.Name, UID: p.UID, Device: a.Seeks})
	}

	// The UID protects a newer pod of the same name. kube-controller-manager deletes by name.
	ticket := e.awaitAnswer(a, deleting)
	if a.Evicts {
		e.out.add(Evict{Ticket: ticket, Name: p.Name, UID: p.UID, Due: a.causeOf()})
		return
	}
	e.out.add(Delete{Ticket: ticket, Name: p.Name, UID: p.UID, Due: a.causeOf()})
}

// podDeleted ends an attempt based on the response to its delete. A pause requested by a busy
// server is respected up to lastRetry, or without a limit if a budget refused the eviction.
// kube-controller-manager gives up after five attempts, 10 ms apart, and the pod stays until it
// changes.
func (e *evictor) podDeleted(now time.Time, a *attempt, answer Answered) {
	switch {
	case answer.Outcome == response.OK, answer.Outcome == response.Gone:
		e.acceptDelete(now, a)
	case a.Evicts && answer.Outcome == response.Busy:
		e.retryLater(now, a, max(answer.RetryAfter, budgetRetry))
	default: // a Conflict means another UID; the next attempt reads the pod
		e.retryLater(now, a, min(answer.RetryAfter, lastRetry))
	}
}

// acceptDelete ends an attempt that leaves the pod terminating or deleted. If the watch does not
// confirm this within confirmAfter, a new attempt begins.
func (e *evictor) acceptDelete(now time.Time, a *attempt) {
	e.underway--
	p := a.pod
	p.attempt, p.Accepted, p.Cancels = nil, true, false
	p.NotYet = now.Add(confirmAfter)
	e.deadlines.enqueuePod(p)
}

// avertDelete ends an attempt stopped by the live state. The watch lags, and its next events will
// determine the deadline. Until then the attempt is repeated with back-off, and no later than at
// the deadline that resulted from the reads.
func (e *evictor) avertDelete(now time.Time, a *attempt) {
	e.averted++
	p := a.pod
	p.Tries++
	at := now.Add(pacing.Backoff{First: firstRetry, Last: lastRetry}.After(p.Tries, string(p.UID)))
	if due := e.liveDue(a); !due.Stays() && due.At.After(now) {
		at = pacing.Earlier(at, due.At)
	}
	e.endAttempt(a, at)
}

// pause stops all attempts while the API cannot be read: the outage affects all pods alike.
type pause struct {
	failures int       // consecutive failures; concurrent ones count once
	until    time.Time // earliest time of the next attempt
}

// extend handles a failed read. Concurrent reads usually fail together, so a failure during the
// pause does not extend it.
func (p *pause) extend(now time.Time, retryAfter time.Duration) {
	if now.Before(p.until) {
		return
	}
	p.failures++
	p.until = now.Add(max(min(retryAfter, lastRetry), pacing.Backoff{First: firstPause, Last: lastPause}.After(p.failures, "")))
}

// retryLater ends an attempt whose delete failed.
func (e *evictor) retryLater(now time.Time, a *attempt, after time.Duration) {
	p := a.pod
	p.Tries++
	wait := max(after, pacing.Backoff{First: firstRetry, Last: lastRetry}.After(p.Tries, string(p.UID)))
	at := now.Add(wait)
	if over := p.Due.At.Add(e.options.BudgetsFor); a.Evicts && e.options.BudgetsFor > 0 && now.Before(over) {
		at = pacing.Earlier(at, over)
	}
	e.endAttempt(a, at)
}

// retryRead ends an attempt whose read failed. The failure may be an outage that affects all pods,
// so all attempts pause.
func (e *evictor) retryRead(now time.Time, a *attempt, answer Answered) {
	e.pause.extend(now, answer.RetryAfter)
	after := min(answer.RetryAfter, lastRetry)
	p, backoff := a.pod, pacing.Backoff{First: firstRetry, Last: lastRetry}
	if answer.Unserved {
		backoff.Last = lastPause // frequent probes do not load a server that is down
	}
	if a.Step == readingNode {
		if p.node.Reads.Ready(now) {
			p.node.Reads.Sent(now, backoff, p.node.Name)
		}
		p.node.Reads.Delay(now.Add(after))
	}
	p.Tries++
	e.endAttempt(a, now.Add(max(after, backoff.After(p.Tries, string(p.UID)))))
}

// endAttempt ends an attempt without an accepted delete. A cancellation during the attempt is
// recorded only here, because until now the pod might still have been deleted.
func (e *evictor) endAttempt(a *attempt, notYet time.Time) {
	e.underway--
	p := a.pod
	p.attempt, p.NotYet = nil, notYet
	if p.Cancels {
		e.deadlines.cancelEviction(p)
	}
	e.deadlines.enqueuePod(p)
}
