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
)

// podGroups counts the placed and missing pods of groups, and writes their conditions. The pods of
// a group are items of the queue like any others. The first popped pod takes its siblings along:
// they are decided, counted on their nodes, passed through Permit, or given up in one step; see
// scheduleGroup. From then on each is a separate placement.
//
// The quorum: until a gang has been scheduled once, minCount of its pods must have nodes together,
// including pods that already have one. It has been scheduled once minCount of its pods were bound
// and the PodGroup records it (PodGroupInitiallyScheduled is True), and this holds as long as one
// of its pods is bound. From then on a replacement pod is placed individually, whatever happened to
// the rest. Terminating pods do not count: their replacements would be half a gang.
type podGroups struct {
	*common
	ready      *readiness
	placements *placements
	gates      groups.Gates // which features are on
	units      gang.Units
	progress   groupProgress
	held       heldMembers
}

// groupProgress reports the progress of groups and trees of them: it reads which of their pods have
// nodes, and writes nothing. Its results hold until the next pod is counted or taken off a node.
type groupProgress struct {
	*common
	placements *placements
}

// heldMembers holds, for each group, the members kept out of the queue by a pod-level gate, with
// the plugin. A single one keeps the whole group out. changed lists the groups that had their first
// member gated, or their last one released, since regateHeld.
type heldMembers struct {
	held    map[*groups.Group]map[types.UID]string
	changed []*groups.Group
}

// unitsChanged wakes waiting pods after a group with pods on nodes has appeared, changed or been
// deleted: which pods they may preempt depends on whether it is disrupted as a whole, and on its
// priority.
func (gs *podGroups) unitsChanged(label string, all ...*groups.Group) {
	if len(gs.units.OnNodes(all...)) == 0 {
		return
	}
	for _, item := range gs.queue.Sorted() {
		if item.Place() == queue.Waiting {
			gs.queue.Wake(item.Pod.UID, label, gs.now)
		}
	}
}

// leastOf is the minimum number of pods on nodes for a group to be placed.
func leastOf(g *groups.Group) int { return max(1, g.MinCount()) }

// wakeMembers reruns the gates for members in these places of the queue, and for those of the other
// groups of a tree.
func (gs *podGroups) wakeMembers(g *groups.Group, label string, places ...queue.Place) {
	if g == nil {
		return
	}
	for _, item := range gs.listMembers(g, places...) {
		gs.queue.Wake(item.Pod.UID, label, gs.now)
	}
}

// listMembers lists the members in these places of the queue, and those of the other groups of a
// tree, in arrival order.
func (gs *podGroups) listMembers(g *groups.Group, places ...queue.Place) (items []*queue.Item) {
	for _, g := range g.Tree() {
		for uid := range g.Members {
			if item := gs.queue.Get(uid); item != nil && slices.Contains(places, item.Place()) {
				items = append(items, item)
			}
		}
	}
	slices.SortFunc(items, earlier)
	return items
}

func earlier(a, b *queue.Item) int {
	if a.Earlier(b) {
		return -1
	}
	return 1
}

// isStarted reports whether the group has been scheduled and still exists: see podGroups.
func (gp *groupProgress) isStarted(g *groups.Group) bool {
	if !g.Scheduled() && !g.Done {
		return false
	}
	for uid := range g.Counted {
		if gp.isBound(uid) {
			return true
		}
	}
	return false
}

// isBound reports whether a pod has its final node.
func (gp *groupProgress) isBound(uid types.UID) bool {
	b := gp.placements.byPod[uid]
	return gp.cluster.Pod(uid) != nil && (b == nil || b.stage == bound)
}

// countPlaced counts the members with a node or being placed on one; bound counts those with a
// final node. It excludes terminating members.
func (gp *groupProgress) countPlaced(g *groups.Group) (placed, bound int) {
	for uid := range g.Counted {
		if gp.cluster.Pod(uid) != nil {
			placed++
			if gp.isBound(uid) {
				bound++
			}
		}
	}
	return placed, bound
}

// countMissing returns the number of members to place together now: the pods missing from a gang's
// quorum, or one.
func (gp *groupProgress) countMissing(g *groups.Group) int {
	if g.MinCount() == 0 || gp.isStarted(g) {
		return 1
	}
	placed, _ := gp.countPlaced(g)
	return max(1, g.MinCount()-placed)
}

// writeScheduled writes that a group is scheduled: minCount of its pods are bound.
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
