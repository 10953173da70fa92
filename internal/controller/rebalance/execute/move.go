package execute

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// move is the move in progress.
//
// A move is made when its victim is evicted, and over when its successor is ready, or the time for
// that is up. In between the Core does nothing else: the next plan is made on what this move has
// led to.
type move struct {
	Flight
	// known tells the successor from the pods that were there. After a restart it is not known
	// which they were; then creation times have to do (see Flight.Begun).
	known map[types.UID]bool // the workload's pods before the eviction; nil after a restart
	// maybe: from then on a victim that is gone counts as evicted by this move.
	maybe   bool // an eviction was sent, and its answer lost
	asked   bool // or an EvictionRequest is there
	evicted time.Time
	left    time.Time // when the victim was first seen gone
	landed  time.Time // when the successor was first seen on a node
	last    string    // why the eviction was refused
	pause   time.Duration
}

// start writes a move into the journal. The eviction follows once it is there. m may be outdated
// already, since taints may have been written since it was planned.
func (c *Core) start(m *rebalance.Move) {
	victim := c.cluster.pod(m.Namespace, m.Name, m.UID)
	if victim == nil || c.proof.outdated(m) {
		c.again()
		return
	}

	c.move = &move{
		Flight: Flight{Move: *m, OwnerUID: rules.OwnerOf(victim).UID, Begun: metav1.NewTime(c.wall().Truncate(time.Second)),
			Unready: !ready(victim)},
		known: map[types.UID]bool{},
	}

	// Next and Improves explain the plan, and would only fill the journal.
	c.move.Next, c.move.Improves = nil, nil
	for uid := range c.cluster.byOwner[rules.OwnerOf(victim)] {
		c.move.known[uid] = true
	}

	c.journal.Move = &c.move.Flight
	c.enter(noting)
	c.note()
}

// evict requests the eviction, for the first time or again. While the request is in flight, there
// is no alarm: its answer decides.
func (c *Core) evict() {
	m := c.move
	c.ticket, c.at = c.nextTicket(), time.Time{}
	c.do(Evict{Ticket: c.ticket, Namespace: m.Namespace, Name: m.Name, UID: m.UID, Grace: m.grace(c.cluster)})
}

// grace overrides the victim's grace period where the policy does. nil leaves it to the pod. An
// override is sent only where it differs, since EvictionRequests have no grace period.
func (m *move) grace(cluster *cluster) *int64 {
	if victim := cluster.pod(m.Namespace, m.Name, m.UID); victim != nil && m.Cost.GraceSeconds != graceOf(victim) {
		return &m.Cost.GraceSeconds
	}
	return nil
}

// graceOf returns the pod's own grace period in seconds, with the API server's default.
func graceOf(p *v1.Pod) int64 {
	if p.Spec.TerminationGracePeriodSeconds != nil {
		return *p.Spec.TerminationGracePeriodSeconds
	}
	return v1.DefaultTerminationGracePeriodSeconds
}

// watchVictim is called while an eviction is being tried: the victim may leave for another reason,
// and the proof may become stale.
func (c *Core) watchVictim(due bool) {
	m := c.move
	if c.at.IsZero() { // a request is in flight: its answer decides
		return
	}
	victim := c.cluster.pod(m.Namespace, m.Name, m.UID)
	switch {
	case victim == nil || victim.DeletionTimestamp != nil:
		// If no eviction of this move can have had effect, it went for another reason, such as a
		// node that is drained.
		if m.maybe {
			c.hasEvicted()
			return
		}
		c.conclude(Ended, "", "the pod went by itself")
	case c.stopping:
		c.drop()
		c.finish(interrupted)
	// Even where an eviction was sent and its answer lost: if it has an effect later, the pod is
	// seen to leave, and plans start from that.
	case c.proof.outdated(&m.Move):
		c.drop()
		c.again()
	case due:
		c.evict()
	}
}

// drop forgets a move, and withdraws what was asked for a pod that has not left.
func (c *Core) drop() {
	if m := c.move; m != nil && m.asked && m.evicted.IsZero() {
		c.do(Withdraw{Pods: map[types.UID]bool{m.UID: true}})
	}
	c.move = nil
	c.journal.dropMove()
}

// refusedOrNot handles the answer to an eviction.
//
//	OK                    the victim is leaving
//	NotFound              it has left: by this move, if one of its evictions may have been made
//	Busy                  a budget or a webhook says no for now: another plan, after a pause
//	Refused               no, and not only for now: the move is given up
//	Failed, Conflict      unknown: the same request again, which is harmless, since it has the UID
func (c *Core) refusedOrNot(e Answered) {
	m := c.move
	m.last = e.Message
	switch {
	case e.Outcome == OK, e.Outcome == NotFound && m.maybe:
		c.hasEvicted()
	case e.Outcome == NotFound:
		c.conclude(Ended, "", "the pod went by itself")
	// Once an eviction may have been made, a refusal is no reason to plan again: the same eviction
	// is repeated.
	case e.Outcome == Busy && !m.maybe:
		c.putOff(e)
	case e.Outcome == Refused || c.now.Sub(c.began) >= refusedFor:
		c.conclude(Withheld, "", "the eviction was refused: "+m.last)
	// Responders may take as long as they like; this is asked again, and again, until refusedFor is
	// over.
	case e.Outcome == Asked:
		m.maybe, m.asked = true, true
		c.at = c.now.Add(retryAfter)
	default: // it is the same eviction, whether it was made or not
		m.maybe = true
		m.pause = max(firstPause, min(2*m.pause, lastPause))
		c.at = c.now.Add(max(m.pause, min(e.RetryAfter, lastPause)))
	}
}

// putOff plans again after a pause: by the time the pod may be evicted, its proof is stale. Pauses
// are doubled while refusals last, across plans, and start anew with the first eviction that is
// accepted.
func (c *Core) putOff(e Answered) {
	r, m := &c.run.refusal, c.move
	if r.first.IsZero() {
		*r = refusal{first: c.now}
	}

	if r.uid != m.UID {
		r.uid, r.since = m.UID, c.now
	}
	r.pause = max(firstPause, min(2*r.pause, lastPause))
	switch {
	case c.now.Sub(r.first) >= allRefused:
		c.drop()
		c.finish("evictions are refused: " + e.Message)
	case c.now.Sub(r.since) >= refusedFor:
		c.conclude(Withheld, "", "the eviction was refused: "+e.Message)
	default:
		c.drop()
		// The next plan may find this pod's budget spent and nothing else to do. Then the run is
		// not over: budgets recover.
		c.run.settling = latest(c.run.settling, c.now.Add(refusedFor))
		c.later(max(r.pause, min(e.RetryAfter, lastPause)))
	}
}

// hasEvicted goes on once the victim is known to leave.
func (c *Core) hasEvicted() {
	c.move.evicted = c.now
	c.run.refusal = refusal{}
	c.tell(Evicted, "")
	c.enter(arriving)
	c.follow()
}

// follow checks where the victim and its successor are.
//
// It is called at each event, and sets the alarm for the one limit that counts at the moment: the
// victim's end, the making of the successor, its node, its readiness.
func (c *Core) follow() {
	m := c.move
	victim := c.cluster.pod(m.Namespace, m.Name, m.UID)
	if victim == nil && m.left.IsZero() {
		m.left = c.now
	}
	if m.To == "" { // the move expects no successor
		c.followEnded(victim)
		return
	}
	next := m.successor(c.cluster)
	switch {
	case next != nil && next.Spec.NodeName != "":
		c.followLanded(next)
	// A successor without a node is no miss as long as the victim may hold its room.
	case victim != nil:
		c.wait(m.ends(), Stuck, "the pod does not end")
	// The workload was scaled down meanwhile.
	case next == nil && c.cluster.satisfied(&m.Flight):
		c.conclude(Ended, "", "the workload wants no successor any more")
	case next == nil:
		c.wait(m.left.Add(pendingFor), Pending, "no successor was made")
	default:
		c.wait(latest(m.left, m.evicted).Add(pendingFor), Pending, "the successor "+next.Name+" has no node"+unschedulable(next))
	}
}

// followEnded follows a pod that had ended and is only to be removed.
func (c *Core) followEnded(victim *v1.Pod) {
	m := c.move
	if victim == nil {
		c.conclude(Arrived, "", "")
		return
	}
	c.wait(m.ends(), Stuck, "the pod does not end")
}

// ends returns by when the victim must have ended. A grace period may be longer than a Duration
// holds. leavingFor is added for a kubelet that is slow to report the end.
func (m *move) ends() time.Time {
	grace := time.Duration(min(m.Cost.GraceSeconds, int64(longestGrace/time.Second))) * time.Second
	return m.evicted.Add(grace + leavingFor)
}

// followLanded follows a successor that has a node until it is ready. Where it landed is judged
// only then, since a workload whose pods do not start is the worse news.
func (c *Core) followLanded(next *v1.Pod) {
	m := c.move
	node := next.Spec.NodeName
	if m.landed.IsZero() {
		m.landed = c.now
	}
	// A victim that was not ready is not expected to have a better successor.
	if !ready(next) && !m.Unready {
		c.wait(m.landed.Add(unreadyFor), Unready, fmt.Sprintf("the successor %s on %s does not become ready", next.Name, node))
		return
	}
	// Also where it was not planned: it is not moved a second time.
	c.run.arrived[next.UID] = true
	if node != m.To && !slices.Contains(m.Or, node) {
		c.conclude(Elsewhere, node, fmt.Sprintf("the successor %s landed on %s", next.Name, node))
		return
	}
	c.conclude(Arrived, node, "")
}

// wait ends the move with a result when its time is up.
func (c *Core) wait(until time.Time, result Result, message string) {
	c.at = until
	if !c.now.Before(until) {
		c.conclude(result, "", message)
	}
}

// successor returns the pod that the workload has most likely created in place of the victim, or
// nil. Several moves of one workload cannot be confused, since there is one at a time; a scale-up
// at the same moment can, and then either pod is as good.
func (m *move) successor(cluster *cluster) *v1.Pod {
	victim := rules.Predecessor{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Owner: m.OwnerUID}
	return cluster.successor(victim, m.To, func(p *v1.Pod) bool {
		before := m.known[p.UID]
		if m.known == nil {
			before = p.CreationTimestamp.Time.Before(m.Begun.Time)
		}
		return !before
	})
}

// conclude ends a move, and plans the next one or ends the run. It is the only end of a move whose
// eviction was tried: it reports, counts, lets the workload rest, and takes the move out of the
// journal.
func (c *Core) conclude(result Result, node, message string) {
	m := c.move
	c.do(Told{Result: result, Move: &m.Move, Node: node, Message: message})
	workload := m.Workload()
	switch {
	// Its proof was not wrong, so it is no miss, and the journal's rests are as before.
	case result == Withheld:
		c.run.withheld++
		c.run.resting[workload] = Rest{Until: metav1.NewTime(c.wall().Add(restsFor))} // for this run
	// This move has evicted no pod.
	case result == Ended:
	default:
		c.run.moves++
		c.run.withheld = 0
		c.run.spent = c.run.spent.With(m.Move)
		if m.To != "" || result.missed() { // removing a pod that has ended disturbs nobody
			c.rest(workload, result.missed())
		}
		c.run.missed++
		c.run.misses++
		if !result.missed() {
			c.run.missed = 0
			c.run.misses--
		}
	}
	// Statuses of workloads and budgets lag behind the pods, so the next plans may find everything
	// busy.
	c.run.settling = c.now.Add(settlesFor)
	c.drop()
	switch {
	case c.stopping:
		c.finish(interrupted)
	// A pod that was running is now pending because of this run. Whatever the cause, another move
	// would not make it better.
	case result == Pending:
		c.finish(fmt.Sprintf("%s/%s: %s", m.Namespace, m.Name, message))
	case c.run.missed >= mostMissed:
		c.finish(fmt.Sprintf("%d successors in a row did not arrive where they were proved to", c.run.missed))
	case c.run.withheld >= mostRefused:
		c.finish(fmt.Sprintf("%d evictions in a row were refused, the last one: %s", c.run.withheld, m.last))
	default:
		c.ask()
	}
}

// tell reports progress of the move.
func (c *Core) tell(result Result, message string) {
	c.do(Told{Result: result, Move: &c.move.Move, Message: message})
}

// unschedulable returns the scheduler's message about a pod.
func unschedulable(p *v1.Pod) string {
	for i := range p.Status.Conditions {
		if cond := &p.Status.Conditions[i]; cond.Type == v1.PodScheduled && cond.Status == v1.ConditionFalse && cond.Message != "" {
			return ": " + cond.Message
		}
	}
	return ""
}

// latest returns the later of two times; the zero time is earlier than any other.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
