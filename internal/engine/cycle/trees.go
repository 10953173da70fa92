// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file handles pod groups that are children of composite groups. The groups of a tree form one
// entity of the queue, and are decided in one step; see scheduleGroup. The quorum of a composite is
// the number of its children to place together. Like the quorum of a gang, it applies only until it
// is first met.
//
// The conditions of the groups record that the quorum was met. A group below a composite is marked
// as scheduled once its own pods, and the pods of as many other groups as the whole tree requires,
// are bound. So a composite has been scheduled if a group below it has been scheduled, which can
// still be determined after a restart.

// compositeSeen processes an added or changed CompositePodGroup.
func (gs *podGroups) compositeSeen(object *groups.CompositePodGroup) {
	if object.ManagedFields != nil { // avoids a write to a stripped object, which a journal may read concurrently
		object.ManagedFields = nil
	}
	c := gs.groups.Composite(nameOf(object))
	fresh := c == nil || c.UID() != object.UID
	least := 0
	if !fresh {
		least = c.MinGroupCount()
	}
	if c = gs.groups.SetComposite(object); !fresh && c.MinGroupCount() == least {
		return
	}
	gs.treeChanged(c, "CompositePodGroupAdd")
	gs.updateTree(c.Top())
}

// compositeGone forgets a CompositePodGroup. The pods below it are gated until it exists again.
func (gs *podGroups) compositeGone(name cluster.Name) {
	c := gs.groups.Composite(name)
	if c == nil {
		return
	}
	top := c.Top() // the top may still have other children
	gs.groups.LoseComposite(name)
	gs.treeChanged(top, "CompositePodGroupDelete")
	if c := gs.groups.Composite(name); c != nil {
		gs.treeChanged(c, "CompositePodGroupDelete")
	}
}

// treeChanged reruns the gates for all pods of a tree.
func (gs *podGroups) treeChanged(c *groups.Composite, label string) {
	leaves := c.Top().Leaves()
	for _, g := range leaves {
		gs.regroup(g)
		g.Full, g.Woken = false, false
	}
	if len(leaves) > 0 {
		gs.unitsChanged(label, leaves...)
		gs.recheckMembers(leaves[0], label) // includes the members of all groups of the tree
	}
}

// unitsChanged wakes waiting pods after a group with pods on nodes has appeared, changed or been
// deleted. The pods that the waiting pods may preempt depend on the group's disruption mode and
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

// recheckMembers reruns the gates for members in all places of the queue.
func (gs *podGroups) recheckMembers(g *groups.Group, label string) {
	for _, item := range gs.listMembers(g, queue.Active, queue.Backoff) {
		gs.queue.Recheck(item.Pod.UID, label, gs.now)
	}
	gs.wakeMembers(g, label, queue.Gated, queue.Waiting)
}

// regroup moves the pods of a group to the queue's entity of its current tree.
func (gs *podGroups) regroup(g *groups.Group) {
	for uid := range g.Members {
		gs.queue.Regroup(uid)
	}
}

// entityOf returns the name of the entity with which a group is decided: the topmost composite of
// its tree, or the group itself if it is in no tree.
func (gs *podGroups) entityOf(group cluster.Name) (name cluster.Name, composite bool) {
	if g := gs.groups.Get(group); g != nil && g.Parent() != nil {
		return g.Parent().Top().Name, true
	}
	return group, false
}

// isHeld reports whether a group keeps its placed pods after a loss: it is settled, or it cannot be
// given up as a whole because some of its pods are bound.
func (gs *podGroups) isHeld(child groups.Child) bool {
	if g := child.Group; g != nil {
		return gs.progress.isSettled(child) || gs.progress.countBound(g) > 0
	}
	return slices.ContainsFunc(child.Composite.Leaves(), func(g *groups.Group) bool { return gs.progress.countBound(g) > 0 }) ||
		gs.progress.holdsFor(child.Composite, gs.isHeld)
}

// listBrokenInTree is listBroken for a group of a tree. It lists the groups below the highest
// composite with too few remaining groups, or only the group itself.
func (gs *podGroups) listBrokenInTree(g *groups.Group) (broken []*groups.Group) {
	if gs.isHeld(groups.Child{Group: g}) {
		return nil
	}
	broken = []*groups.Group{g}
	if g.Root() == nil {
		return broken // the state of the other groups is unknown
	}
	for c := g.Parent(); c != nil; c = c.Parent() {
		if !gs.isHeld(groups.Child{Composite: c}) {
			broken = c.Leaves()
		}
	}
	return broken
}

// describeIncompleteTree describes why a tree gates the pods of a group.
func (gs *podGroups) describeIncompleteTree(g *groups.Group) string {
	root := g.Root()
	if root == nil {
		top := g.Parent().Top()
		if top.Object != nil {
			return fmt.Sprintf("the composite pod groups above it, as %q, have no root: they name each other as parents", top.Name.Name)
		}
		return fmt.Sprintf("there is no CompositePodGroup %q", top.Name.Name)
	}
	return fmt.Sprintf("CompositePodGroup %q asks for %d groups at once, and the number of those that have all their pods is %d%s",
		root.Name.Name, root.MinGroupCount(), gs.progress.countReady(root), gs.progress.describeLack(root))
}
