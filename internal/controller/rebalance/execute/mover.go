package execute

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/ask"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Bounds of a departure, whatever it is for. They are generous to a cluster under load, and short
// enough not to hang on one pod: controllers make pods and schedulers place them within seconds,
// but large images take minutes to pull, and a kubelet may be slow to report that a pod has ended.
const (
	pendingFor = time.Minute      // for how long a successor may be without a node, or not be made at all
	unreadyFor = 10 * time.Minute // for how long it may be on its node without being ready
	leavingFor = 2 * time.Minute  // beyond its grace period, for how long a pod may take to end
	refusedFor = 2 * time.Minute  // for how long the same eviction is tried
	retryAfter = 5 * time.Second  // until an eviction that is put off is tried again, as kubectl does
	// longestGrace is the longest grace period that is waited for: a year. It is there for
	// arithmetic: grace periods are int64 seconds, and a time.Duration overflows after 292 years.
	longestGrace = 365 * 24 * time.Hour
)

// mover has pods leave, in the same way for moves and for drains: one eviction is tried at a time,
// a request whose answer was lost is repeated, and a pod that has gone counts as evicted if it may
// have been. Which pod is next, what a refusal means and what is waited for afterwards is up to its
// policy.
type mover struct {
	machine
	policy  policy
	cluster *cluster
	surges  *surges

	stopping bool // no further pod leaves
	// evicting is the departure whose eviction is tried, although many pods may be terminating;
	// room the one whose successor's room is kept; nil: none.
	evicting, room *departure
	// found are the successors of all departures: none succeeds two pods.
	found map[types.UID]bool
	// paces space the requests about each pod, across plans: a plan may choose a pod again whose
	// eviction had no effect, or which the watch still shows although it is gone.
	paces map[types.UID]*ask.Pace
}

// policy is what tells a drain from a run of moves. Its methods are called within a step.
type policy interface {
	// tell reports the progress of a departure; nil: what is about none.
	tell(p *departure, result Result, node, message string)
	// leaving takes a pod that leaves from now on, which has been told.
	leaving(p *departure)
	// vanished takes a pod that has left for another reason.
	vanished(p *departure)
	// putOff takes an eviction that is refused for now or was asked for, and refused one that is
	// refused for good or has failed for too long. Neither is tried again by itself.
	putOff(p *departure, e Answered)
	refused(p *departure, e Answered)
	// surgeEnded is called when the scale is what it was. If the surge was given up, why says so.
	surgeEnded(s *surge)
}

// init makes the mover of a policy. It knows what the cluster does.
func (m *mover) init(policy policy, cluster *cluster, wall func(time.Time) time.Time) {
	*m = mover{machine: machine{wallOf: wall}, policy: policy, cluster: cluster, surges: &surges{mover: m}, found: map[types.UID]bool{},
		paces: map[types.UID]*ask.Pace{}}
}

// take takes up what an event means to any mover.
func (m *mover) take(event Event) {
	switch e := event.(type) {
	case Seen, Gone:
		m.cluster.see(event)
		if gone, ok := event.(Gone); ok {
			delete(m.paces, gone.Object.GetUID())
		}
	case NoRoom:
		m.policy.tell(nil, Roomless, "", e.Why)
	case Unanswered:
		m.policy.tell(nil, Direct, "", e.Why)
	case Stop:
		m.stopping = true
	case Answered:
		if p := m.evicting; !m.surges.answered(e) && p != nil && p.ticket == e.Ticket {
			m.evictionAnswered(p, e)
		}
	}
}

// evict requests the eviction of a pod, for the first time or again. While the request is in
// flight, there is no alarm: its answer decides.
func (m *mover) evict(p *departure) {
	if p.tried.IsZero() {
		p.tried = m.now
	}
	m.keepRoom(p)
	m.paced(p.UID)
	m.evicting, p.ticket = p, m.nextTicket()
	m.do(Evict{Ticket: p.ticket, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Grace: p.grace, Delete: p.past, Room: p.flight})
}

// paced records a request about a pod and returns when the next one may follow.
func (m *mover) paced(uid types.UID) time.Time {
	pace := m.paces[uid]
	if pace == nil {
		pace = &ask.Pace{}
		m.paces[uid] = pace
	}
	pace.Sent(m.now, ask.Backoff{First: firstPause, Last: lastPause}, string(uid))
	return pace.Next
}

// nextFor returns when the next request about a pod may be sent.
func (m *mover) nextFor(uid types.UID) time.Time {
	if pace := m.paces[uid]; pace != nil {
		return pace.Next
	}
	return m.now
}

// evictionAnswered handles the answer to an eviction.
//
//	OK                    the pod is leaving
//	NotFound              it has left: by this departure, if one of its evictions may have been made
//	Asked, Busy           not yet: a responder, a budget or a webhook takes its time
//	Refused               no, and not only for now
//	Failed, Conflict      unknown: the same request again, which is harmless, since it has the UID
func (m *mover) evictionAnswered(p *departure, e Answered) {
	m.evicting, p.ticket, p.answer = nil, 0, e.Message
	switch {
	case e.Outcome == OK, e.Outcome == NotFound && p.maybe:
		m.leave(p)
	case e.Outcome == NotFound:
		m.policy.vanished(p)
	case e.Outcome == Asked:
		p.maybe = true
		if p.asked.IsZero() {
			p.asked = m.now
		}
		m.policy.putOff(p, e)
	case e.Outcome == Busy:
		m.policy.putOff(p, e)
	case e.Outcome == Refused, m.now.Sub(p.tried) >= refusedFor:
		m.policy.refused(p, e)
	default:
		m.evicting, p.maybe = p, true
		p.again(m.now, e.RetryAfter)
		p.retry = latest(p.retry, m.nextFor(p.UID))
	}
}

// retryEviction goes on with the eviction in progress, unless its request is in flight: it may have
// been made, and then the pod leaves; else it is tried again when it is time.
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

// leave goes on with a pod that is known to leave: it was evicted, or its controller removes it
// since its successor was ready before. From here on its successor is looked for. The eviction of
// another pod may be in flight, and goes on.
func (m *mover) leave(p *departure) {
	if m.evicting == p {
		m.evicting = nil
	}
	p.at = m.now
	result := Evicted
	if p.ended {
		result = Replaced
	}
	m.policy.tell(p, result, "", "")
	m.policy.leaving(p)
}

// victim returns the pod of a departure, nil once it is gone.
func (m *mover) victim(p *departure) *v1.Pod { return m.cluster.pod(p.Namespace, p.Name, p.UID) }

// leaves reports whether a pod has been seen to terminate, or to be gone.
func (m *mover) leaves(p *departure) bool {
	victim := m.victim(p)
	return victim == nil || victim.DeletionTimestamp != nil
}

// successorOf returns the pod that the workload has most likely made in place of one, or nil. It
// may be another one at each call, as long as the departure is not over. A scale-up at the same
// moment can be confused with it, and then either pod is as good.
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

// keepRoom has the scheduler keep the room of a pod's successor instead of any other; the request
// that has the pod leave shows it.
func (m *mover) keepRoom(p *departure) {
	if p.flight != nil {
		m.room = p
	}
}

// freeRoom has no room kept any longer.
func (m *mover) freeRoom() {
	if p := m.room; p != nil {
		m.room = nil
		m.do(FreeRoom{Room: p.flight})
	}
}

// attempt is a request that is repeated until its answer says what has become of it.
type attempt struct {
	ticket Ticket    // of the request in flight; 0: it is made at retry
	retry  time.Time // when it is made again
	failed int       // requests that failed, in a row
}

// again has the request made again after a pause.
func (a *attempt) again(now time.Time, asked time.Duration) {
	a.ticket, a.retry = 0, now.Add(pauseAfter(a.failed, asked))
	a.failed++
}

// Pauses between tries.
const (
	firstPause = time.Second      // doubled up to lastPause
	lastPause  = 15 * time.Second // the longest of them
)

// putOffFor returns for how long an eviction is not tried again that is refused for now or was
// asked for.
func putOffFor(e Answered) time.Duration { return min(max(retryAfter, e.RetryAfter), lastPause) }

// pauseAfter returns the pause after a try that was not the first to fail in a row. A longer one
// that the server asks for is made, up to lastPause.
func pauseAfter(failed int, asked time.Duration) time.Duration {
	return min(max(firstPause<<min(failed, 5), asked), lastPause)
}
