// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/groups"
)

// This file reports the progress of groups and trees: which of their pods exist, have nodes and are
// bound, and what is missing.

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
	for uid := range g.Counted {
		if gp.isBound(uid) {
			return true
		}
	}
	return false
}

// isBound reports whether a pod is on a node and its binding, if made by this scheduler, has
// succeeded.
func (gp *groupProgress) isBound(uid types.UID) bool {
	b := gp.placements.byPod[uid]
	return gp.cluster.Pod(uid) != nil && (b == nil || b.stage == bound)
}

// countPlaced counts the members that have a node or are being placed on a node. bound is the
// number of bound members; see isBound. Terminating members are not counted.
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

// isPlaced reports whether the group's required number of pods have a node, whether they are bound
// or not.
func (gp *groupProgress) isPlaced(g *groups.Group) bool {
	placed, _ := gp.countPlaced(g)
	return placed > 0 && placed >= g.MinCount()
}

// countMissing returns the number of members to place together now: the number of pods missing from
// a gang's quorum, or 1.
func (gp *groupProgress) countMissing(g *groups.Group) int {
	if g.MinCount() == 0 || gp.isStarted(g) {
		return 1
	}
	placed, _ := gp.countPlaced(g)
	return max(1, g.MinCount()-placed)
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
	if g := child.Group; g != nil {
		return g.Count() >= leastOf(g) || gp.isStarted(g)
	}
	return gp.holdsFor(child.Composite, gp.isReady)
}

// isSettled reports whether a group has its required pods on nodes, or a composite has its required
// number of settled children.
func (gp *groupProgress) isSettled(child groups.Child) bool {
	if g := child.Group; g != nil {
		placed, _ := gp.countPlaced(g)
		return placed >= leastOf(g) || gp.isStarted(g)
	}
	return gp.holdsFor(child.Composite, gp.isSettled)
}

// isBoundWhole is like isSettled, but counts only bound pods.
func (gp *groupProgress) isBoundWhole(child groups.Child) bool {
	if g := child.Group; g != nil {
		_, bound := gp.countPlaced(g)
		return bound >= leastOf(g) || gp.isStarted(g)
	}
	return gp.holdsFor(child.Composite, gp.isBoundWhole)
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
