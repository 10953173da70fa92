// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"fmt"
	"slices"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file holds the state of all groups, and reports the progress of groups and trees: which of
// their pods exist, have nodes and are bound, and what is missing. It writes the condition of a
// group once the group is scheduled.

// podGroups counts the placed and missing pods of groups, and writes their conditions. The pods of
// a group are items of the queue, like all pending pods. When the first of them is popped, its
// siblings are taken as well. In one step, all of them are decided, counted on their nodes and
// passed through Permit, or given up; see scheduleGroup. Afterwards each pod is a separate
// placement.
//
// Until a gang has been scheduled, it has a quorum: minCount of its pods must have nodes together,
// including pods that already have a node. A gang counts as scheduled once minCount of its pods
// were bound and the PodGroup records it (PodGroupInitiallyScheduled is True), for as long as one
// of its pods is bound. A replacement pod of a scheduled gang is placed individually, regardless of
// the other pods. Terminating pods do not count; otherwise their replacements could be placed as
// half a gang.
type podGroups struct {
	*common
	ready      *readiness
	placements *placements
	gates      groups.Gates // enabled features
	units      gang.Units
	progress   groupProgress
	held       heldMembers
}

// groupProgress reports the progress of groups and trees: which of their pods have nodes. It
// changes nothing. Its results are valid until a pod is counted on a node or removed from one.
type groupProgress struct {
	*common
	placements *placements
}

// leastOf returns the minimum number of pods on nodes for a group to count as placed.
func leastOf(g *groups.Group) int { return max(1, g.MinCount()) }

// isStarted reports whether the group counts as scheduled; see podGroups.
func (gp *groupProgress) isStarted(g *groups.Group) bool {
	if !g.Scheduled() && !g.Done {
		return false
	}
	return rules.Any(g.Counted, gp.isBound)
}

// isBound reports whether a pod is on a node and its binding, if made by this scheduler, has
// succeeded.
func (gp *groupProgress) isBound(uid types.UID) bool {
	b := gp.placements.byPod[uid]
	return gp.cluster.Pod(uid) != nil && (b == nil || b.stage == bound)
}

// countPlaced counts the members that have a node or are being placed on a node. Terminating
// members are not counted.
func (gp *groupProgress) countPlaced(g *groups.Group) (placed int) {
	for uid := range g.Counted {
		if gp.cluster.Pod(uid) != nil {
			placed++
		}
	}
	return placed
}

// countBound counts the bound members; see isBound.
func (gp *groupProgress) countBound(g *groups.Group) (bound int) {
	for uid := range g.Counted {
		if gp.isBound(uid) {
			bound++
		}
	}
	return bound
}

// isPlaced reports whether the group's required number of pods have a node, whether they are bound
// or not.
func (gp *groupProgress) isPlaced(g *groups.Group) bool {
	placed := gp.countPlaced(g)
	return placed > 0 && placed >= g.MinCount()
}

// countMissing returns the number of members to place together now: the number of pods missing from
// a gang's quorum, or 1.
func (gp *groupProgress) countMissing(g *groups.Group) int {
	if g.MinCount() == 0 || gp.isStarted(g) {
		return 1
	}
	return max(1, g.MinCount()-gp.countPlaced(g))
}

// isIncomplete reports whether the group gates its pods because the PodGroup is missing, or because
// there are too few pods to schedule a gang as a whole. A group in a tree gates its pods only if
// the whole tree is incomplete. If the tree is complete, an incomplete group in it is decided, and
// found to be incomplete, while the other groups of the tree are placed.
func (gp *groupProgress) isIncomplete(g *groups.Group) bool {
	if g.Object != nil && g.Parent() != nil {
		root := g.Root()
		return root == nil || !gp.isReady(groups.Child{Composite: root})
	}
	return g.Object == nil || g.Count() < g.MinCount() && !gp.isStarted(g)
}

// isReady reports whether a group has enough pods, or a composite has enough ready groups.
func (gp *groupProgress) isReady(child groups.Child) bool {
	return gp.hasEnough(child, (*groups.Group).Count)
}

// isSettled reports whether a group has its required pods on nodes, or a composite has its required
// number of settled children.
func (gp *groupProgress) isSettled(child groups.Child) bool {
	return gp.hasEnough(child, gp.countPlaced)
}

// hasEnough reports whether enough of a group's pods are counted, or enough children of a composite
// have enough.
func (gp *groupProgress) hasEnough(child groups.Child, countPods func(*groups.Group) int) bool {
	if g := child.Group; g != nil {
		return countPods(g) >= leastOf(g) || gp.isStarted(g)
	}
	return gp.holdsFor(child.Composite, func(below groups.Child) bool { return gp.hasEnough(below, countPods) })
}

// holdsFor reports whether a predicate holds for the required number of a composite's children.
// Once the composite has been scheduled, one child suffices.
func (gp *groupProgress) holdsFor(c *groups.Composite, is func(groups.Child) bool) bool {
	count, least := 0, gp.leastGroups(c)
	for _, child := range c.Children() {
		if is(child) {
			count++
		}
		if count >= least {
			return true
		}
	}
	return false
}

// leastGroups returns the minimum number of placed children of a composite, including children
// placed earlier.
func (gp *groupProgress) leastGroups(c *groups.Composite) int {
	least := c.MinGroupCount()
	// The composite has been scheduled, and a pod below it is still bound.
	if least > 1 && slices.ContainsFunc(c.Leaves(), gp.isStarted) {
		return 1
	}
	return least
}

// countReady counts the children of a composite that are ready.
func (gp *groupProgress) countReady(c *groups.Composite) (ready int) {
	for _, child := range c.Children() {
		if gp.isReady(child) {
			ready++
		}
	}
	return ready
}

// describeLack describes the shortage of the first unready group below a composite. It returns ""
// if the composite itself has too few children.
func (gp *groupProgress) describeLack(c *groups.Composite) string {
	for _, child := range c.Children() {
		switch {
		case gp.isReady(child):
		case child.Group != nil:
			return fmt.Sprintf("; pod group %q has %d of %d pods", child.Group.Name.Name, child.Group.Count(), leastOf(child.Group))
		default:
			below := child.Composite
			return cmp.Or(gp.describeLack(below), fmt.Sprintf("; composite pod group %q has %d of %d groups",
				below.Name.Name, gp.countReady(below), gp.leastGroups(below)))
		}
	}
	return ""
}

// wakeMembers wakes the members in these places of the queue, including the members of the other
// groups of the tree. Waking a gated member reruns its gate.
func (gs *podGroups) wakeMembers(g *groups.Group, label string, places ...queue.Place) {
	if g == nil {
		return
	}
	for _, item := range gs.listMembers(g, places...) {
		gs.queue.Wake(item.Pod.UID, label, gs.now)
	}
}

// listMembers lists the members in these places of the queue, in arrival order. It includes the
// members of the other groups of the tree.
func (gs *podGroups) listMembers(g *groups.Group, places ...queue.Place) (items []*queue.Item) {
	for _, g := range g.Tree() {
		for uid := range g.Members {
			if item := gs.pendingItem(uid); item != nil && slices.Contains(places, item.Place()) {
				items = append(items, item)
			}
		}
	}
	slices.SortFunc(items, (*queue.Item).Compare)
	return items
}

// wakeStarted reruns the gates for members of a gang found to be already scheduled, since such a
// gang may have fewer pods than required. A gang counts as scheduled only if it has the condition
// and a bound pod (isStarted), and a list may show the bound pods after the gated pods. In a tree,
// every composite above a scheduled group requires only one child from then on.
func (gs *podGroups) wakeStarted(g *groups.Group) {
	inTree := g.Parent() != nil
	if inTree && g.Woken || !inTree && g.Count() >= g.MinCount() || !gs.progress.isStarted(g) {
		return
	}
	g.Woken = g.Woken || inTree
	gs.wakeMembers(g, queue.Appeared, queue.Gated)
}

// updateScheduled marks a group as scheduled once the group meets its requirement, unless its
// condition already shows this. It is called whenever a pod of the group may have been bound.
func (gs *podGroups) updateScheduled(g *groups.Group) {
	switch {
	case !gs.ready.mayDecide() || !gs.ready.begun || g.Object == nil || g.Done || g.Scheduled():
		return
	case g.Count() < g.MinCount():
		g.Short = 0 // count again then: other pods may be bound by the time the group is complete again
		return
	case g.Short > 1: // each call follows at most one new binding, so pods are still missing
		g.Short--
		return
	}

	switch g.Short = leastOf(g) - gs.progress.countBound(g); {
	case g.Short > 0:
	case g.Parent() != nil:
		if !g.Full {
			g.Full = true
			gs.updateTree(g.Root())
		}
	default:
		g.Done = true
		gs.writeScheduled(g)
	}
}

// updateTree writes the scheduled condition of fully bound groups, once the pods required by the
// tree are bound.
func (gs *podGroups) updateTree(root *groups.Composite) {
	if root == nil || root.Object == nil || root.Parent() != nil || !gs.ready.mayDecide() || !gs.ready.begun {
		return
	}
	var whole []*groups.Group
	gs.listBoundWhole(groups.Child{Composite: root}, &whole)
	for _, g := range whole {
		if !g.Done && !g.Scheduled() {
			g.Done = true
			gs.writeScheduled(g)
		}
	}
}

// listBoundWhole adds the fully bound groups of a subtree to list, except for groups below a
// composite that is not fully bound.
func (gs *podGroups) listBoundWhole(of groups.Child, list *[]*groups.Group) {
	switch {
	case !gs.progress.hasEnough(of, gs.progress.countBound):
	case of.Group != nil:
		*list = append(*list, of.Group)
	default:
		for _, child := range of.Composite.Children() {
			gs.listBoundWhole(child, list)
		}
	}
}

// writeScheduled writes the condition of a scheduled group, which has minCount bound pods.
func (gs *podGroups) writeScheduled(g *groups.Group) {
	gs.writeCondition(g, metav1.ConditionTrue, "Scheduled", "")
}

// writeCondition writes the condition PodGroupInitiallyScheduled if it has changed since the last
// write. The API may not show that write yet.
func (gs *podGroups) writeCondition(g *groups.Group, status metav1.ConditionStatus, reason, message string) {
	if g.Object == nil {
		return
	}
	condition := metav1.Condition{
		Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: status, Reason: reason, Message: message,
		ObservedGeneration: g.Object.Generation, LastTransitionTime: metav1.NewTime(gs.wallTime()),
	}

	text := func(c *metav1.Condition) string { return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message) }
	last := g.LastCondition
	if old := g.Condition(); old != nil {
		if old.Status == status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		last = cmp.Or(last, text(old))
	}

	if g.LastCondition = text(&condition); g.LastCondition != last {
		gs.addAction(WriteGroup{Group: g.Object, Condition: condition})
	}
}

// WriteGroup writes the condition PodGroupInitiallyScheduled of a PodGroup.
type WriteGroup struct {
	Group     *groups.PodGroup
	Condition metav1.Condition
}

func (a WriteGroup) String() string {
	return fmt.Sprintf("write group %s/%s, %s=%s %s: %s", a.Group.Namespace, a.Group.Name, a.Condition.Type, a.Condition.Status,
		a.Condition.Reason, a.Condition.Message)
}
