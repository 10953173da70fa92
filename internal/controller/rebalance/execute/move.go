// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
)

// start writes a move to the journal. The eviction follows once the journal is written. m may
// already be outdated, because taints may have been written since it was planned.
func (c *Core) start(m *rebalance.Move) {
	victim := c.cluster.pod(m.Namespace, m.Name, m.UID)
	if victim == nil || c.proof.outdated(m) {
		c.again()
		return
	}

	f := &Flight{Move: *m, OwnerUID: rules.OwnerOf(victim).UID, Begun: metav1.NewTime(c.wall().Truncate(time.Second)),
		Unready: !rules.HasReadyCondition(victim)}
	// Next and Improves only explain the plan, and would enlarge the journal.
	f.Next, f.Improves = nil, nil
	c.move = departureOf(f)
	c.move.known = c.cluster.podsOf(c.move.owner)
	// A grace period is sent only if it differs from the pod's own, because an EvictionRequest has
	// no field for it.
	if m.Cost.GraceSeconds != ptr.Deref(victim.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds) {
		c.move.grace = &f.Cost.GraceSeconds
	}

	c.journal.Move = f
	c.enter(noting)
	c.note()
}

// tryEviction continues an eviction attempt as long as the proof of the move holds.
func (c *Core) tryEviction() {
	c.at = time.Time{}
	switch m := c.move; {
	case m.ticket != 0 || c.leaves(m):
		c.retryEviction()
	case c.stopping:
		c.drop()
		c.finish(interrupted)
	// The move is dropped even if the response to an eviction was lost. If that eviction takes
	// effect later, the pod is observed to terminate, and the next plan includes it.
	case c.proof.outdated(&m.flight.Move):
		c.drop()
		c.again()
	default:
		c.retryEviction()
	}
}

// drop forgets a move, and withdraws any EvictionRequest for a pod that has not left.
func (c *Core) drop() {
	if m := c.move; m != nil && !m.asked.IsZero() && m.at.IsZero() {
		c.addAction(Withdraw{Pods: map[types.UID]bool{m.UID: true}})
	}
	c.freeRoom()
	c.move, c.evicting = nil, nil
	c.journal.dropMove()
}

// putOff replans after a pause: by the time the pod may be evicted, its proof is stale. Pauses
// double while refusals last, across plans, and reset with the first accepted eviction. If an
// earlier attempt may have succeeded, a refusal does not cause a new plan: the same eviction is
// repeated, as it is while a responder works.
func (c *Core) putOff(m *departure, e Answered) {
	r := &c.run.refusal
	switch {
	case m.maybe && c.now.Sub(m.tried) >= refusedFor:
		c.refused(m, e)
		return
	case m.maybe:
		c.evicting = m
		m.retry = pacing.Later(c.now.Add(putOffFor(e)), c.nextFor(m.UID))
		return
	case r.first.IsZero():
		*r = refusal{first: c.now}
	}

	if r.uid != m.UID {
		r.uid, r.since = m.UID, c.now
	}
	pause := max(pauseAfter(r.count, e.RetryAfter), c.nextFor(m.UID).Sub(c.now))
	r.count++
	switch {
	case c.now.Sub(r.first) >= allRefused:
		c.drop()
		c.finish("evictions are refused: " + e.Message)
	case c.now.Sub(r.since) >= refusedFor:
		c.refused(m, e)
	default:
		c.drop()
		// The next plan may find this pod's budget spent and no other move. Such a plan does not
		// end the run, because budgets recover.
		c.run.settling = pacing.Later(c.run.settling, c.now.Add(refusedFor))
		c.later(pause)
	}
}

// refused gives up the move.
func (c *Core) refused(_ *departure, e Answered) {
	c.conclude(Withheld, "", "the eviction was refused: "+e.Message)
}

// vanished ends the move: none of its evictions can have taken effect, so the pod left for another
// reason, such as a node drain. Plans may still contain the pod until the watch delivers its
// deletion.
func (c *Core) vanished(m *departure) {
	c.postpone(m, c.nextFor(m.UID))
	c.conclude(Ended, "", "the pod was deleted for another reason")
}

// postpone rests a move's workload in this run until the given time.
func (c *Core) postpone(m *departure, until time.Time) {
	workload, rest := m.flight.Workload(), metav1.NewTime(c.wall().Add(until.Sub(c.now)))
	if before := c.run.resting[workload].Until; before.Before(&rest) {
		c.run.resting[workload] = Rest{Until: rest}
	}
	c.run.settling = pacing.Later(c.run.settling, until)
}

// leaving resets the refusals and begins to follow the pod.
func (c *Core) leaving(*departure) {
	c.run.refusal = refusal{}
	c.enter(arriving)
	c.follow()
}

// follow checks the victim and its successor.
//
// It runs on each event, and sets the alarm for the currently relevant limit: the victim's
// termination, or the successor's creation, scheduling or readiness.
func (c *Core) follow() {
	m := c.move
	victim := c.victim(m)
	if victim == nil && m.left.IsZero() {
		m.left = c.now
	}
	var next *v1.Pod
	if m.To != "" {
		next = c.successorOf(m)
	}
	switch {
	case next != nil && next.Spec.NodeName != "":
		c.followLanded(next)
	// An unscheduled successor is not a miss while the victim may occupy its room.
	case victim != nil:
		c.wait(m.ends(), Stuck, "the pod does not terminate")
	case m.To == "": // a terminal pod that was only removed
		c.conclude(Arrived, "", "")
	// The workload was scaled down meanwhile.
	case next == nil && c.cluster.satisfied(m):
		c.conclude(Ended, "", "the workload no longer needs a successor")
	default:
		c.wait(pacing.Later(m.left, m.at).Add(pendingFor), Pending, homeless(next))
	}
}

// followLanded follows a scheduled successor until it is ready. It reports a successor on the wrong
// node only then, because pods that do not start are the more serious failure.
func (c *Core) followLanded(next *v1.Pod) {
	m := c.move
	node := next.Spec.NodeName
	if m.landed.IsZero() {
		m.landed = c.now
	}
	// The successor of an unready victim need not become ready.
	if !rules.HasReadyCondition(next) && !m.flight.Unready {
		c.wait(m.landed.Add(unreadyFor), Unready, fmt.Sprintf("the successor %s on %s does not become ready", next.Name, node))
		return
	}
	// A successor on an unplanned node is not moved a second time either.
	c.run.arrived[next.UID] = true
	if node != m.To && !slices.Contains(m.Or, node) {
		c.conclude(Elsewhere, node, fmt.Sprintf("the successor %s landed on %s", next.Name, node))
		return
	}
	c.conclude(Arrived, node, "")
}

// wait sets the alarm. At that time, it ends the move with the given result.
func (c *Core) wait(until time.Time, result Result, message string) {
	c.at = until
	if !c.now.Before(until) {
		c.conclude(result, "", message)
	}
}

// conclude ends a move and plans the next one or ends the run. Every move with an attempted
// eviction ends here: conclude reports it, counts it, rests the workload, and removes the move from
// the journal.
func (c *Core) conclude(result Result, node, message string) {
	m := c.move
	c.report(m, result, node, message)
	switch workload := m.flight.Workload(); {
	// A withheld move does not contradict its proof, so it is not a miss, and the journal's rests
	// stay unchanged.
	case result == Withheld:
		c.run.withheld++
		c.run.resting[workload] = Rest{Until: metav1.NewTime(c.wall().Add(restsFor))} // for this run
	// This move has evicted no pod, so nothing is counted.
	case result == Ended:
	default:
		c.run.moves++
		c.run.withheld = 0
		c.run.spent = c.run.spent.Plus(m.flight.Move)
		if m.To != "" || result.missed() { // removing a terminal pod disturbs no other pod
			c.rest(workload, result.missed())
		}
		c.run.missed++
		if !result.missed() {
			c.run.missed = 0
		}
		c.run.misses += min(c.run.missed, 1)
	}
	// Statuses of workloads and budgets lag behind the pods, so the next plans may find everything
	// busy.
	c.run.settling = c.now.Add(settlesFor)
	c.drop()
	switch {
	case c.stopping:
		c.finish(interrupted)
	// This run has turned a running pod into a pending pod, so it ends regardless of the cause.
	case result == Pending:
		c.finish(nameOf(&m.Departure) + ": " + message)
	case c.run.missed >= mostMissed:
		c.finish(fmt.Sprintf("%d successors in a row did not land where planned", c.run.missed))
	case c.run.withheld >= mostRefused:
		c.finish(fmt.Sprintf("%d evictions in a row were refused, the last one: %s", c.run.withheld, m.answer))
	default:
		c.ask()
	}
}

// report reports progress. In the phase surging it omits Arrived and Restored, because the result
// of the move is reported at its end.
func (c *Core) report(m *departure, result Result, node, message string) {
	told := MoveProgress{Result: result, Node: node, Message: message}
	switch {
	case c.phase == surging && (result == Arrived || result == Restored):
		return
	case m == nil:
	case m.flight == nil: // a surge of an earlier process
		told.Message = nameOf(&m.Departure) + ": " + message
	default:
		told.Move = &m.flight.Move
	}
	c.addAction(told)
}
