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

// GroupInfo is the stored part of a PodGroup. It does not change.
type GroupInfo struct {
	name      types.NamespacedName
	parent    types.NamespacedName // the CompositePodGroup that it is in; without a name: in none
	needed    int                  // pods that are placed together or not at all; 0: not a gang
	scheduled bool                 // the condition PodGroupInitiallyScheduled is true
	message   string               // of that condition, unless it is true
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

// group is a pod group seen, or named by a pod.
type group struct {
	info         *GroupInfo // nil: not seen
	list         uint32     // the last list that showed it
	pods, placed int        // pods that have not ended, and those of them with a node
	tree         string     // the top of the tree that it is in; empty: in none, or not known yet
	treeWaits    bool       // a pod in that tree
	shown        Group      // zero: not at all
}

// GroupsListing begins a list of PodGroups: groups not seen until GroupsListed have been removed.
func (c *Cluster) GroupsListing() { c.groupList++ }

// GroupsListed ends it. Before the first list, pods are shown without a group: an API without
// PodGroups lacks such a list. After it, all pods and groups are examined once more.
func (c *Cluster) GroupsListed() {
	for name, g := range c.groups {
		if g.info != nil && g.list != c.groupList {
			c.GroupGone(name)
		}
	}
	if !c.grouped {
		c.grouped = true
		for uid := range c.pods {
			c.dirtyPods[uid] = true
		}
		for name := range c.groups {
			c.dirtyGroups[name] = true
		}
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

// setGroupInfo makes a group a child of its present composite, and of no other. showTrees then
// finds its tree.
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

// groupNamed returns a group about to change, and marks it.
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

// showGroup updates a group's row. A group is shown while one of its pods waits, or a pod of its
// tree.
func (c *Cluster) showGroup(name types.NamespacedName, set *Set[Group]) {
	g := c.groups[name]
	row := g.groupRow(name)
	if !c.grouped || !g.waits() && !g.treeWaits {
		row = Group{} // it does not wait
	}
	switch {
	case row == g.shown:
	case row == Group{}:
		set.Gone = append(set.Gone, g.shown.Key)
	default:
		set.Rows = append(set.Rows, row)
	}
	g.shown = row
	// Neither an object nor a pod names it any more.
	if g.info == nil && g.pods == 0 {
		delete(c.groups, name)
	}
}

// groupRow returns the row of a group, with the reason why it waits, if known.
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

// runs reports whether the group has been scheduled, with a pod remaining: later ones are placed
// one by one.
func (g *group) runs() bool { return g.info != nil && g.info.scheduled && g.placed > 0 }

// isComplete reports whether the group has the pods needed simultaneously, and isPlaced whether so
// many have a node. The group has an object.
func (g *group) isComplete() bool { return g.runs() || g.pods >= max(1, g.info.needed) }
func (g *group) isPlaced() bool   { return g.runs() || g.placed >= max(1, g.info.needed) }

func (g *group) parent() (parent types.NamespacedName) {
	if g.info == nil {
		return parent
	}
	return g.info.parent
}
