// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// GroupInfo is the stored part of a PodGroup. It is immutable.
type GroupInfo struct {
	name      types.NamespacedName
	parent    types.NamespacedName // parent CompositePodGroup; empty name: none
	needed    int                  // pods that are placed together or not at all; 0: not a gang
	scheduled bool                 // the condition PodGroupInitiallyScheduled is true
	message   string               // message of that condition, unless it is true
}

// GroupOf extracts the stored part of an object.
func GroupOf(object *schedulingv1beta1.PodGroup) *GroupInfo {
	g := &GroupInfo{
		name:   types.NamespacedName{Namespace: object.Namespace, Name: object.Name},
		parent: parentOf(object.Namespace, object.Spec.ParentCompositePodGroupName),
	}
	if gang := object.Spec.SchedulingPolicy.Gang; gang != nil {
		g.needed = int(gang.MinCount)
	}
	if c := meta.FindStatusCondition(object.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled); c != nil {
		if g.scheduled = c.Status == metav1.ConditionTrue; !g.scheduled {
			g.message = internString(c.Message)
		}
	}
	return g
}

// group is an observed pod group, or one referenced by a pod.
type group struct {
	info         *GroupInfo // nil: not observed
	list         uint32     // number of the last list that contained the object
	pods, placed int        // number of unfinished pods, and of unfinished pods with a node
	tree         string     // root of the group's tree; empty: none or not yet known
	treeWaits    bool       // a pod in that tree is pending
	shown        Group      // shown row; zero: not shown
}

// GroupsListing begins a list of PodGroups. Groups not observed before the next GroupsListed have
// been deleted.
func (c *Cluster) GroupsListing() { c.groupList++ }

// GroupsListed ends a list of PodGroups. Before the first list, pods are shown without a group. An
// API without PodGroups never provides a list. After the first list, the rows of all pods and
// groups are computed again.
func (c *Cluster) GroupsListed() {
	for name, g := range c.groups {
		if g.info != nil && g.list != c.groupList {
			c.GroupGone(name)
		}
	}
	if !c.grouped {
		c.grouped = true
		touchAll(c.dirtyPods, c.pods)
		touchAll(c.dirtyGroups, c.groups)
	}
}

// GroupSeen applies a PodGroup, new or changed.
func (c *Cluster) GroupSeen(info *GroupInfo) {
	c.setGroupInfo(info.name, info)
	c.groups[info.name].list = c.groupList
}

// GroupGone removes a PodGroup.
func (c *Cluster) GroupGone(name types.NamespacedName) {
	if c.groups[name] != nil {
		c.setGroupInfo(name, nil)
	}
}

// setGroupInfo replaces a group's object, and moves the group from its previous parent to its
// current one. showTrees then finds its tree.
func (c *Cluster) setGroupInfo(name types.NamespacedName, info *GroupInfo) {
	g := c.groupNamed(name)
	if was := g.parent(); was.Name != "" {
		delete(c.Trees.compositeNamed(was).groups, name)
	}
	g.info, g.tree, g.treeWaits = info, "", false
	if is := g.parent(); is.Name != "" {
		c.Trees.compositeNamed(is).groups[name] = true
	}
}

// groupNamed returns the group with a name, for the caller to change. It creates the group if
// needed, and marks its row as dirty.
func (c *Cluster) groupNamed(name types.NamespacedName) *group {
	g := c.groups[name]
	if g == nil {
		g = &group{}
		c.groups[name] = g
	}
	c.dirtyGroups[name] = true
	return g
}

// joinGroup adds a pod to the counts of its group or, with -1, subtracts it. Terminal and
// terminating pods no longer count.
func (c *Cluster) joinGroup(p *Pod, sign int) {
	if p.group == "" || p.ended || p.going != 0 {
		return
	}
	g := c.groupNamed(p.groupName())
	g.pods += sign
	if p.eviction.Node != "" {
		g.placed += sign
	}
}

// showGroup updates a group's row. A group is shown while one of its pods, or a pod of its tree, is
// pending.
func (c *Cluster) showGroup(name types.NamespacedName, set *Set[Group]) {
	g := c.groups[name]
	row := g.groupRow(name)
	if !c.grouped || !g.waits() && !g.treeWaits {
		row = Group{} // the group does not wait
	}
	replaceRow(set, g.shown.Key, &g.shown, row)
	// The group has neither an object nor pods.
	if g.info == nil && g.pods == 0 {
		delete(c.groups, name)
	}
}

// groupRow returns the row of a group, with the known reason for its waiting.
func (g *group) groupRow(name types.NamespacedName) Group {
	row := Group{Key: name.String(), Tree: g.tree, Pods: g.pods, Placed: g.placed}
	if g.tree != "" {
		row.Parent = g.info.parent.String()
	}
	if g.info != nil {
		row.Needed = g.info.needed
	}
	switch {
	case g.info == nil:
		row.Message = "PodGroup " + name.Name + " does not exist"
	case g.pods == 0 && g.info.needed <= 1:
		row.Message = "it has no pods yet"
	case !g.isComplete():
		row.Message = fmt.Sprintf("%d pods are needed at once; it has %d", g.info.needed, g.pods)
	default:
		row.Message = g.info.message
	}
	return row
}

func (g *group) waits() bool { return g.pods != g.placed }

// runs reports whether the group has been scheduled and still has a placed pod. Further pods of
// such a group are placed individually.
func (g *group) runs() bool { return g.info != nil && g.info.scheduled && g.placed > 0 }

// isComplete reports whether the group has the number of pods needed simultaneously; isPlaced
// reports whether that number of pods have a node. The group must have an object.
func (g *group) isComplete() bool { return g.runs() || g.pods >= max(1, g.info.needed) }
func (g *group) isPlaced() bool   { return g.runs() || g.placed >= max(1, g.info.needed) }

func (g *group) parent() (parent types.NamespacedName) {
	if g.info == nil {
		return parent
	}
	return g.info.parent
}
