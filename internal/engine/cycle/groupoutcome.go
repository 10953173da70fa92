// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// This file carries out the decision about a group: its members are placed, wait for the removal of
// victims, or return to the queue.

const notReachedMessage = "the attempt for the pod group took too long and ended before this pod was looked at; it is " +
	"tried again after its back-off"

var errNotReached = &Fault{Message: notReachedMessage, Verdict: true}

// startPlacements starts the placements of members with a node, and requeues the remaining members
// to be decided again. If the group lacks its quorum because out-of-tree plugins refuse members,
// all members are given up.
func (a *groupAttempt) startPlacements() {
	placed := a.enterPlacements()
	left := a.listLeft()
	waits, err := a.askOutside(placed)
	if len(waits) < a.attempt.Need && err != nil {
		a.giveUp(placed, left, waits, err)
		return
	}
	a.proceed(placed, left, waits)
}

// enterPlacements counts the members with a node as placements, and returns them.
func (a *groupAttempt) enterPlacements() (placed []*member) {
	for _, m := range a.attempt.Placed() {
		placed = append(placed, a.byAsked[m])
	}
	a.group.Last, a.group.Shortened, a.group.Reached = groups.Attempt{}, 0, nil
	a.releaseRoom()
	for _, m := range placed {
		a.decisions.rememberPlaced(m.placement, m.Node, m.asked.Found.Total, m.asked.Found.Feasible)
		a.placements.enter(m.placement)
		a.events.podAdded(m.Waiting, nil)
		if was := m.asked.Nominee; was != nil && was.Nominated != m.Node {
			a.events.podRemoved(was, a.cluster.Node(was.Nominated), nil)
		}
	}

	a.endGroup()
	return placed
}

// listLeft lists the members without a node.
func (a *groupAttempt) listLeft() []*member {
	return slices.DeleteFunc(slices.Clone(a.members), func(m *member) bool { return m.Node != "" })
}

// proceed starts the placements of members allowed by plugins, and has the remaining members
// decided again.
func (a *groupAttempt) proceed(placed, left []*member, through map[*member]permitWaits) {
	for _, m := range placed {
		if wait, in := through[m]; in {
			m.sibling = false
			a.placements.startPreparation(m.placement, wait)
		}
	}

	for _, m := range left {
		a.tryRestAgain(m)
	}
}

// tryRestAgain requeues a member without a node although its group was placed. As upstream, it is
// decided again immediately, together with the other remaining members, as a group that needs one
// more pod. This attempt may preempt. Fitting members are thus bound before any pod is preempted.
func (a *groupAttempt) tryRestAgain(m *member) {
	m.sibling = false
	m.endAttempt(false)
	switch {
	case m.asked.Err != nil:
		a.requeueFailed(m.placement, m.asked.Err)
	case !m.asked.Reached():
		a.requeueFailed(m.placement, errNotReached)
	default:
		a.queue.TryAgain(m.item, a.now)
	}
}

// giveUp takes back the members allowed by plugins, because they are too few, and rejects the
// members without a node. No pod is preempted for them.
func (a *groupAttempt) giveUp(placed, left []*member, through map[*member]permitWaits, why error) {
	reason := v1.PodReasonSchedulerError
	if refused := (*rejection)(nil); errors.As(why, &refused) {
		reason = v1.PodReasonUnschedulable
	}
	a.writeUnscheduled(reason, why.Error())
	for _, m := range placed {
		if _, in := through[m]; in {
			a.placements.takeBack(m.placement, errGroupBroken)
		}
	}
	for _, m := range left {
		m.sibling = false
		m.endAttempt(false)
		a.requeueUnschedulable(m.placement, a.why(m), new(string))
	}
}

// askOutside runs the out-of-tree Permit plugins for all members with a node, and takes back the
// refused members. The members' resources are already reserved. It returns the waits of the
// remaining members, and the reason of the first refusal.
func (a *groupAttempt) askOutside(placed []*member) (all map[*member]permitWaits, first error) {
	all = map[*member]permitWaits{}
	for _, m := range placed {
		wait, err := a.placements.askPermit(m.placement)
		if err != nil {
			a.placements.takeBack(m.placement, err)
			first = cmp.Or(first, fmt.Errorf("%s: %w", podName(m.Pod), err))
			continue
		}
		all[m] = wait
	}
	return all, first
}

// rejectAll requeues all members to wait. An event that can help any of them wakes the group. If
// domains were skipped, or the limit of work was reached, the group is retried after its back-off.
// text joins the messages of PodGroupPostFilter plugins.
func (a *groupAttempt) rejectAll(text string) {
	a.noteRejectors()
	nodes := a.reserveRoom()
	verdict, next := a.attempt.Conclude()
	a.group.Shortened, a.group.Reached = next.Shortened, next.Reached
	message := verdict.Reason()
	for _, m := range a.members {
		m.endAttempt(false)
		if verdict.IsTriedAgain() && len(nodes) == 0 {
			a.preemptions.noteUnschedulable(m.item)
			a.requeueFailed(m.placement, &Fault{Message: a.why(m).message, Verdict: true}) // retried after the back-off, without an event
			continue
		}
		node := nodes[m.Pod.UID]
		a.requeueUnschedulable(m.placement, a.why(m), &node)
	}
	if text != "" {
		message += ", " + text
	}
	if len(nodes) > 0 {
		message += a.reserved.words()
	}
	a.writeUnscheduled(v1.PodReasonUnschedulable, message)
}

// why returns the reason for a member's rejection.
func (a *groupAttempt) why(m *member) *unschedulableReason {
	if m.asked.Failure == nil && a.tree != nil && !a.lacksOwn() {
		return &unschedulableReason{message: a.tree.wordsOf(a.tree.failingAbove(a.group)),
			plugins: gang.WithNames([]string{groups.GangScheduling}, a.rejectors)}
	}
	if m.asked.Failure == nil {
		return &unschedulableReason{
			message: groupUnschedulable + ", " + a.words().wordsWith(a.unhelped),
			plugins: gang.WithNames([]string{groups.GangScheduling}, a.rejectors),
		}
	}
	if !m.asked.Reached() {
		return &unschedulableReason{message: notReachedMessage}
	}
	rejectors := gang.WithNames(m.asked.RejectedBy(), a.rejectors)
	if a.attempt.InDomains() { // another domain may become the best domain
		rejectors = nil
	}
	return &unschedulableReason{m.asked.Failure.Message(m.claims), rejectors, m.asked.Failure.Pending, m.asked.Failure.Reasons}
}

// noteRejectors records the rejectors of all members if the members differ. If an event makes one
// member fit elsewhere, its former place may be free for another member, so an event that helps any
// member may help all of them. It also records the rejectors found when members were tried without
// any other member placed, because placed members may hide these rejections.
func (a *groupAttempt) noteRejectors() {
	if !a.attempt.OrderMatters() {
		return
	}
	for _, m := range a.members {
		if m.asked.Reached() {
			a.rejectors = gang.WithNames(a.rejectors, m.asked.RejectedBy())
		}
	}

	a.rejectors = gang.WithNames(a.rejectors, a.attempt.ListRejectorsAlone())
}

// failAll requeues all members after an error, even if it concerns only one member.
func (a *groupAttempt) failAll(err error) {
	a.reserved.endFor(a.group)
	if slices.ContainsFunc(a.members, func(m *member) bool { return m.asked.Err != nil }) {
		err = fmt.Errorf("failed to schedule other pod from a pod group: %w", err)
	}
	for _, m := range a.members {
		own := err
		if m.asked.Err != nil {
			own = m.asked.Err
		}
		m.endAttempt(false)
		a.requeueFailed(m.placement, own)
	}
	a.writeUnscheduled(v1.PodReasonSchedulerError, err.Error())
}

// makeGroupRoom evicts the victims of a plan, and holds the room by nominating each member to its
// node. The group is not retried before all removals have completed.
func (a *groupAttempt) makeGroupRoom(plan *gang.RoomPlan) {
	a.reserved.endFor(a.group)
	a.takeNominated(plan)
	victims := a.preemptions.evictUnits(plan.Victims, preemptor{
		kind: "podgroup", uid: a.group.Object.UID, profile: a.members[0].Profile,
	})

	nodes := map[*member]string{}
	a.noteNodes(nodes, plan.Places)
	for _, m := range a.members {
		m.victims = victims
	}
	a.awaitRoom(nodes, a.words().wordsWith(preemptionMessage(len(victims))))
}

// takeNominated removes the nominations of lower-priority pods to the nodes of a plan.
func (a *groupAttempt) takeNominated(plan *gang.RoomPlan) {
	if plan.Beside {
		return
	}
	for _, p := range plan.Places {
		for _, waiting := range slices.Clone(p.Decision.Node.Nominated) {
			if waiting.Class.Priority < a.attempt.LowestPriority() && !a.groups.GroupOf(waiting.UID).SharesTree(a.group) {
				a.nominations.moveOn(waiting)
			}
		}
	}
}

// awaitRoom requeues the members until they have room on these nodes. The message is for the group,
// and for the members that fit in the current state.
func (a *groupAttempt) awaitRoom(nodes map[*member]string, message string) {
	a.noteRejectors()
	a.returnMembers(nodes, message)
}

// returnMembers is awaitRoom without recording rejectors.
func (a *groupAttempt) returnMembers(nodes map[*member]string, message string) {
	for _, m := range a.members {
		m.endAttempt(false)
		w := a.why(m)
		if m.asked.Failure == nil || !m.asked.Reached() {
			w.message = message
		}
		node := nodes[m]
		a.requeueUnschedulable(m.placement, w, &node)
	}
	a.writeUnscheduled(v1.PodReasonUnschedulable, message)
}
