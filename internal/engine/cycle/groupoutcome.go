// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// This file carries out the decision about a group or a tree: its pods are placed, wait for the
// removal of victims, or return to the queue.

const notReachedMessage = "the attempt for the pod group took too long and ended before this pod was looked at; it is " +
	"tried again after its back-off"

var errNotReached = &Fault{Message: notReachedMessage, Verdict: true}

// startPlacements starts the placements of all pods with a node, and requeues the remaining pods to
// be decided again. If out-of-tree plugins refuse so many members that a group lacks its quorum, or
// a tree lacks its groups, all members are given up. If no pod of a tree is started, all its pods
// back off before they are decided again, because the refused pods are among them.
func (t *treeAttempt) startPlacements() {
	if t.root != nil {
		t.root.Shortened = 0
	}
	t.releaseRoom()
	for _, a := range t.leaves {
		if len(a.attempt.Placed()) > 0 {
			a.enterPlacements()
		}
		a.endGroup()
		a.left = slices.DeleteFunc(slices.Clone(a.members), func(m *member) bool { return m.Node != "" })
	}

	var first error
	for _, a := range t.leaves {
		err := a.askOutside()
		if len(a.placed) > 0 && len(a.through) < a.attempt.Need && err != nil {
			a.refused, first = err, cmp.Or(first, err)
		}
	}
	if first != nil && t.root != nil {
		t.giveUpRefused(t.whole)
	}
	goesOn := slices.ContainsFunc(t.leaves, func(a *groupAttempt) bool { return a.refused == nil && len(a.through) > 0 })
	for _, a := range t.leaves {
		if !goesOn && a.refused == nil {
			a.refused = first
		}
	}

	for _, a := range t.leaves {
		if a.refused != nil {
			a.giveUp()
		} else {
			a.proceed()
		}
	}
}

// enterPlacements counts the members with a node as placements.
func (a *groupAttempt) enterPlacements() {
	for _, m := range a.attempt.Placed() {
		a.placed = append(a.placed, a.byAsked[m])
	}
	a.group.Last, a.group.Shortened, a.group.Reached = groups.Attempt{}, 0, nil
	for _, m := range a.placed {
		a.decisions.rememberPlaced(m.podAttempt, m.Node, m.asked.Found.Total, m.asked.Found.Feasible)
		a.placements.enter(m.placement)
		a.events.podAdded(m.Waiting, nil)
		if was := m.asked.Nominee; was != nil && was.Nominated != m.Node {
			a.events.podRemoved(was, a.cluster.Node(was.Nominated), nil)
		}
	}
}

// giveUpRefused marks the groups below composites with too few remaining groups as refused. It
// reports whether the child is still settled.
func (t *treeAttempt) giveUpRefused(of groups.Child) (settled bool) {
	if g := of.Group; g != nil {
		a := t.attemptOf[g]
		return (a == nil || a.refused == nil) && t.podGroups.progress.isSettled(of)
	}

	count := 0
	for _, child := range of.Composite.Children() {
		if t.giveUpRefused(child) {
			count++
		}
	}
	if count >= t.podGroups.progress.leastGroups(of.Composite) {
		return true
	}

	// Groups placed below a given-up composite are refused as well, with the reason of one refused
	// group.
	why := errors.New("too few groups of the composite pod group are left")
	below := t.below(of.Composite)
	for _, a := range below {
		why = cmp.Or(a.refused, why)
	}
	for _, a := range below {
		if a.refused == nil && len(a.placed) > 0 {
			a.refused = why
		}
	}
	return false
}

// proceed starts the placements of members allowed by plugins, and has the remaining members
// decided again.
func (a *groupAttempt) proceed() {
	for _, m := range a.placed {
		if wait, in := a.through[m]; in {
			m.sibling = false
			a.placements.proceed(m.placement, wait)
		}
	}

	for _, m := range a.left {
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
		a.requeueFailed(m.podAttempt, m.asked.Err)
	case !m.asked.Reached():
		a.requeueFailed(m.podAttempt, errNotReached)
	default:
		a.queue.TryAgain(m.item, a.now)
	}
}

// giveUp takes back the members allowed by plugins, because they are too few, and rejects the
// members without a node. No pod is preempted for them.
func (a *groupAttempt) giveUp() {
	reason := v1.PodReasonSchedulerError
	if refused := (*rejection)(nil); errors.As(a.refused, &refused) {
		reason = v1.PodReasonUnschedulable
	}
	a.writeUnscheduled(reason, a.refused.Error())
	for _, m := range a.placed {
		if _, in := a.through[m]; in {
			a.placements.takeBack(m.placement, errGroupBroken)
		}
	}
	for _, m := range a.left {
		m.sibling = false
		m.endAttempt(false)
		a.requeueUnschedulable(m.podAttempt, a.why(m), new(string))
	}
}

// askOutside runs the out-of-tree Permit plugins for all members with a node, and takes back the
// refused members. The members' resources are already reserved. It returns the reason of the first
// refusal.
func (a *groupAttempt) askOutside() (first error) {
	a.through = map[*member]permitWaits{}
	for _, m := range a.placed {
		wait, err := a.placements.askPermit(m.placement)
		if err != nil {
			a.placements.takeBack(m.placement, err)
			first = cmp.Or(first, fmt.Errorf("%s: %w", podName(m.Pod), err))
			continue
		}
		a.through[m] = wait
	}
	return first
}

// rejectAll requeues all pods to wait. An event that can help any of them wakes the group or the
// tree. With retry, a tree is retried after its back-off, even without an event. text joins the
// messages of PodGroupPostFilter plugins.
func (t *treeAttempt) rejectAll(retry bool, text string) {
	if t.root == nil {
		t.rejectGroup(text)
		return
	}
	if t.shortened {
		t.root.Shortened++
	}
	t.shareRejectors()
	room := t.reserveRoom()
	for _, a := range t.leaves {
		a.returnMembers(room.Nodes, retry, t.reasonOf(a)+room.words("tree"), "")
	}
}

// rejectGroup is rejectAll for a group in no tree. If domains were skipped, or the limit of work
// was reached, the group is retried after its back-off.
func (t *treeAttempt) rejectGroup(text string) {
	a := t.leaves[0]
	a.noteRejectors()
	room := t.reserveRoom()
	verdict, next := a.attempt.Conclude()
	a.group.Shortened, a.group.Reached = next.Shortened, next.Reached
	message := verdict.Reason()
	if text != "" {
		message += ", " + text
	}
	a.returnMembers(room.Nodes, verdict.IsTriedAgain() && room.Nodes == nil, message+room.words("group"), "")
}

// reasonOf returns the reason why a group is not placed.
func (t *treeAttempt) reasonOf(a *groupAttempt) string {
	if t.root == nil || a.lacksOwn() {
		return a.attempt.Verdict().Reason()
	}
	failing := t.failingAbove(a.group)
	message := t.wordsOf(failing)
	if other := t.firstFailing(failing); other != nil {
		return fmt.Sprintf("%s; pod group %q: %s", message, other.group.Name.Name, other.attempt.Verdict().Reason())
	}
	return message + "."
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
	return &unschedulableReason{m.asked.Failure.Message(m.claims), rejectors, m.asked.Failure.Pending, m.asked.Failure.Reasons, false}
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

// failAll requeues all pods after an error, even if the error concerns only one of them.
func (t *treeAttempt) failAll(err error) {
	t.rewind(t.root)
	t.reserved.endFor(t.uid, false)
	whole := err
	for _, a := range t.leaves {
		if slices.ContainsFunc(a.members, func(m *member) bool { return m.asked.Err != nil }) {
			whole = fmt.Errorf("failed to schedule other pod from a pod group: %w", err)
		}
	}
	for _, a := range t.leaves {
		for _, m := range a.members {
			m.endAttempt(false)
			a.requeueFailed(m.podAttempt, cmp.Or(m.asked.Err, whole))
		}
		a.writeUnscheduled(v1.PodReasonSchedulerError, whole.Error())
	}
}

// makeRoom evicts the victims of a plan, and holds the room by nominating each pod to its node. The
// pods are not retried before all removals have completed.
func (t *treeAttempt) makeRoom(plan *gang.RoomPlan) {
	lead := t.leaves[0]
	by := preemptor{kind: "podgroup", uid: t.uid, profile: lead.members[0].Profile, node: "cluster"}
	if t.root != nil {
		by.kind = "compositepodgroup"
	}
	t.reserved.endFor(by.uid, false)
	lead.takeNominated(plan)
	t.events.inPostFilter = true // an unbound victim is removed immediately; see handleNoFit
	victims := t.preemptions.evictPods(slices.Concat(plan.Victims...), by)
	t.events.inPostFilter = false
	for _, m := range t.members() {
		m.victims = victims
	}

	text := "pod group preemption: ongoing preemption on nominated nodes"
	if len(victims) > 0 {
		text = fmt.Sprintf("pod group preemption: found a placement for podgroup, preempting %d victims", len(victims))
	}
	t.awaitRoom(nodesByPod(plan.Places), text)
}

// takeNominated removes the nominations of lower-priority pods to the nodes of a plan.
func (a *groupAttempt) takeNominated(plan *gang.RoomPlan) {
	if plan.Beside {
		return
	}
	for _, p := range plan.Places {
		for _, waiting := range slices.Clone(p.Decision.Node.Nominated) {
			if waiting.Class.Priority < a.attempt.LowestPriority() && !a.groups.GroupOf(waiting.UID()).SharesTree(a.group) {
				a.nominations.moveOn(waiting)
			}
		}
	}
}

// awaitRoom requeues the pods until they have room on these nodes. The message is for the groups,
// and for the members that fit in the current state.
func (t *treeAttempt) awaitRoom(nodes map[types.UID]string, text string) {
	if t.root == nil {
		a := t.leaves[0]
		text = a.words().wordsWith(text)
		a.noteRejectors()
		a.returnMembers(nodes, false, text, text)
		return
	}
	t.shareRejectors()
	for _, a := range t.leaves {
		message := strings.TrimSuffix(t.reasonOf(a), ".") + ", " + text
		a.returnMembers(nodes, false, message, message)
	}
}

// returnMembers requeues the members with the nodes as their nominations, and writes the message
// for the group. own, if set, is the message for the members that fit in the current state. With
// retry, the members are retried after their back-off, without an event.
func (a *groupAttempt) returnMembers(nodes map[types.UID]string, retry bool, message, own string) {
	for _, m := range a.members {
		m.endAttempt(false)
		w := a.why(m)
		if own != "" && (m.asked.Failure == nil || !m.asked.Reached()) {
			w.message = own
		}
		if retry {
			w = &unschedulableReason{message: w.message, retry: true}
		}
		node := nodes[m.Pod.UID]
		a.requeueUnschedulable(m.podAttempt, w, &node)
	}
	a.writeUnscheduled(v1.PodReasonUnschedulable, message)
}

// shareRejectors makes every pod wait for the events that may help any pod of the tree.
func (t *treeAttempt) shareRejectors() {
	var rejectors []string
	for _, a := range t.leaves {
		a.noteRejectors()
		rejectors = gang.WithNames(rejectors, a.rejectors)
		for _, m := range a.members {
			if m.asked.Failure != nil && m.asked.Reached() {
				rejectors = gang.WithNames(rejectors, m.asked.RejectedBy())
			}
		}
	}
	for _, a := range t.leaves {
		a.rejectors = slices.Clone(rejectors)
	}
}
