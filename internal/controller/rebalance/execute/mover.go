// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// Bounds of any departure. They are long enough for a cluster under load, and short enough not to
// block on one pod: controllers create pods and schedulers place them within seconds, but large
// images take minutes to pull, and a kubelet may report termination late.
const (
	pendingFor  = time.Minute      // limit for a successor to be created and scheduled
	unreadyFor  = 10 * time.Minute // limit for a scheduled successor to become ready
	leavingFor  = 2 * time.Minute  // limit for a pod to terminate, after its grace period
	refusedFor  = 2 * time.Minute  // limit for attempts of the same eviction
	confirmsFor = 30 * time.Second // limit for the watch to show that an accepted eviction has taken effect
	retryAfter  = 5 * time.Second  // pause before a refused eviction is retried, as in kubectl
	// longestGrace caps the grace period at a year. Grace periods are int64 seconds, and a
	// time.Duration overflows after 292 years.
	longestGrace = 365 * 24 * time.Hour
)

// mover removes pods in the same way for moves and for drains: it attempts one eviction at a time,
// repeats a request after losing its response, and counts a missing pod as evicted if an eviction
// may have succeeded. Its policy chooses the next pod, interprets refusals, and determines the wait
// that follows.
type mover struct {
	machine
	policy  policy
	cluster *cluster
	surges  *surges

	stopping bool // no further pod is evicted
	// evicting is the departure being evicted, or nil. Any number of evicted pods may still be
	// terminating.
	evicting  *departure
	reserving []*departure // departures with a reservation for their successors, as last published
	// found holds the successors of all departures: a pod succeeds at most one pod.
	found map[types.UID]bool
	// paces space the requests per pod, across plans: a plan may choose a pod again after an
	// ineffective eviction, or before the watch delivers its deletion.
	paces map[types.UID]*pacing.Pace
}

// policy distinguishes a drain from a run of moves. Its methods are called within a step.
type policy interface {
	// report reports the progress of a departure; nil means a report unrelated to a departure.
	report(p *departure, result Result, node, message string)
	// leaving takes over a pod that has begun to leave. It is called after report.
	leaving(p *departure)
	// vanished handles a pod that left for another reason.
	vanished(p *departure)
	// putOff handles an eviction that is refused for now or submitted as an EvictionRequest, and
	// refused handles a permanent refusal, or failures for too long. The mover retries neither.
	putOff(p *departure, e Answered)
	refused(p *departure, e Answered)
	// surgeEnded is called at the end of a surge. For an abandoned surge, s.why is the reason.
	surgeEnded(s *surge)
}

// init initializes a mover with its policy and its cluster, which a Drainer may share with a
// Roller.
func (m *mover) init(policy policy, cluster *cluster, wall func(time.Time) time.Time) {
	*m = mover{machine: machine{wallOf: wall}, policy: policy, cluster: cluster, surges: &surges{mover: m}, found: map[types.UID]bool{},
		paces: map[types.UID]*pacing.Pace{}}
}

// take handles an event in the way common to all policies.
func (m *mover) take(event Event) {
	switch e := event.(type) {
	case Seen:
		m.cluster.see(event)
		m.surges.touch(e.Object)
	case Gone:
		m.cluster.see(event)
		m.surges.touch(e.Object)
		delete(m.paces, e.Object.GetUID())

	case NoReservation:
		m.cluster.see(event)
		m.policy.report(nil, Unreserved, "", e.Why)
	case Unanswered:
		m.policy.report(nil, Direct, "", e.Why)
	case Stop:
		m.stopping = true
	case Answered:
		if p := m.evicting; !m.surges.answered(e) && p != nil && p.ticket == e.Ticket {
			m.evictionAnswered(p, e)
		}
	}
}

// evict requests the eviction of a pod, or repeats the request. While the request is in flight, no
// alarm is set: its response determines the next step.
func (m *mover) evict(p *departure) {
	if p.tried.IsZero() {
		p.tried = m.now
	}
	m.paced(p.UID)
	m.evicting, p.ticket = p, m.nextTicket()
	m.addAction(Evict{Ticket: p.ticket, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Grace: p.grace, Delete: p.past, Reservations: m.keepRoom(p)})
}

// paced records a request about a pod and returns the earliest time for the next one.
func (m *mover) paced(uid types.UID) time.Time {
	pace := m.paces[uid]
	if pace == nil {
		pace = &pacing.Pace{}
		m.paces[uid] = pace
	}
	pace.Sent(m.now, pacing.Backoff{First: firstPause, Last: lastPause}, string(uid))
	return pace.Next
}

// nextFor returns the earliest time for the next request about a pod.
func (m *mover) nextFor(uid types.UID) time.Time {
	if pace := m.paces[uid]; pace != nil {
		return pace.Next
	}
	return m.now
}

// evictionAnswered handles the response to an eviction.
//
//	OK                    the pod is leaving
//	NotFound              the pod no longer exists; evicted, if an earlier request may have succeeded
//	Asked, Busy           not evicted yet: a responder, a budget or a webhook may allow it later
//	Refused               refused permanently
//	Failed, Conflict      unknown; the request is repeated, which is safe, because it has the UID
func (m *mover) evictionAnswered(p *departure, e Answered) {
	m.evicting, p.ticket, p.answer = nil, 0, e.Message
	switch {
	case e.Outcome == response.OK, e.Outcome == response.Gone && p.maybe:
		m.leave(p)
	case e.Outcome == response.Gone:
		m.policy.vanished(p)
	case e.Outcome == response.Asked:
		p.maybe = true
		if p.asked.IsZero() {
			p.asked = m.now
		}
		m.policy.putOff(p, e)

	case e.Outcome == response.Busy:
		m.policy.putOff(p, e)
	case e.Outcome == response.Refused, m.now.Sub(p.tried) >= refusedFor:
		m.policy.refused(p, e)
	default:
		m.evicting, p.maybe = p, true
		p.again(m.now, e.RetryAfter)
		p.retry = pacing.Later(p.retry, m.nextFor(p.UID))
	}
}

// retryEviction continues the eviction in progress, unless its request is in flight. If the request
// may have succeeded and the pod is leaving, retryEviction counts the pod as evicted. Otherwise it
// retries once the next attempt is due.
func (m *mover) retryEviction() {
	switch p := m.evicting; {
	case p.ticket != 0:
	case m.leaves(p):
		m.leave(p)
	case m.now.Before(p.retry):
		m.wake(p.retry)
	default:
		m.evict(p)
	}
}

// leave handles a pod known to be leaving: it was evicted, or its controller removes it because its
// successor was ready first. From here on its successor is tracked. An eviction of another pod may
// be in flight, and continues.
func (m *mover) leave(p *departure) {
	if m.evicting == p {
		m.evicting = nil
	}
	p.at = m.now
	result := Evicted
	if p.ended {
		result = Replaced
	}
	m.policy.report(p, result, "", "")
	m.policy.leaving(p)
}

// victim returns the pod of a departure, or nil after its deletion.
func (m *mover) victim(p *departure) *v1.Pod { return m.cluster.pod(p.Namespace, p.Name, p.UID) }

// leaves reports whether a pod has been observed as terminating or deleted.
func (m *mover) leaves(p *departure) bool {
	victim := m.victim(p)
	return victim == nil || victim.DeletionTimestamp != nil
}

// successorOf returns the most likely replacement of a departure's pod, or nil. The result may
// change between calls until the departure is over. It may be confused with a pod of a simultaneous
// scale-up; either pod is equally good then.
func (m *mover) successorOf(p *departure) *v1.Pod {
	delete(m.found, p.next)
	p.next = ""
	victim := rules.Predecessor{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Owner: p.owner.UID}
	next := m.cluster.successor(victim, p.To, func(o *v1.Pod) bool { return !p.precedes(o) && !m.found[o.UID] })
	if next != nil {
		p.next, m.found[next.UID] = next.UID, true
	}
	return next
}

// keepRoom adds the room of a pod's successor to the reservations of the pods that still leave, and
// returns all of them for the caller's request. nil leaves the published reservations unchanged.
func (m *mover) keepRoom(p *departure) Reservations {
	if p.flight == nil {
		return nil
	}
	m.reserving = append(slices.DeleteFunc(m.reserving, func(o *departure) bool { return o == p || !m.needsRoom(o) }), p)
	return reservationsOf(m.reserving)
}

// needsRoom reports whether a departure still awaits its successor.
func (m *mover) needsRoom(p *departure) bool {
	return !p.ended && (!p.at.IsZero() || p == m.evicting || m.surges.places(p))
}

// freeRoom releases the reservations.
func (m *mover) freeRoom() {
	if len(m.reserving) > 0 {
		m.addAction(ReleaseReservations{Reservations: reservationsOf(m.reserving)})
		m.reserving = nil
	}
}

func reservationsOf(list []*departure) Reservations {
	return rules.Mapped(list, func(p *departure) *Flight { return p.flight })
}

// attempt is a request repeated until its outcome is known.
type attempt struct {
	ticket response.Ticket // ticket of the request in flight; 0 if none
	retry  time.Time       // earliest time of the next try
	failed int             // consecutive failures
	done   bool            // the request was accepted; of a NodeClaim
}

// again schedules another try after a pause.
func (a *attempt) again(now time.Time, asked time.Duration) {
	a.ticket, a.retry = 0, now.Add(pauseAfter(a.failed, asked))
	a.failed++
}

// Pauses between tries.
const (
	firstPause = time.Second      // doubled up to lastPause
	lastPause  = 15 * time.Second // maximum
)

// putOffFor returns the delay before retrying an eviction that was refused for now or submitted as
// an EvictionRequest.
func putOffFor(e Answered) time.Duration { return min(max(retryAfter, e.RetryAfter), lastPause) }

// pauseAfter returns the pause after consecutive failures. It honors a longer pause requested by
// the server, up to lastPause.
func pauseAfter(failed int, asked time.Duration) time.Duration {
	return min(max(firstPause<<min(failed, 5), asked), lastPause)
}
