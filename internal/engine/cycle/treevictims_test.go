// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"slices"
	"sync/atomic"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// treePreemptions counts preemptions by trees.
var treePreemptions atomic.Int64

// checkTreeVictims checks a step with preemption by a tree. The victims must have a lower priority
// than the tree. Once the victims and all terminating pods have terminated, the required number of
// groups must have room on their pods' nominated nodes.
func (w *world) checkTreeVictims(actions []Action) {
	view := w.core.View()
	var g *groups.Group
	for _, action := range actions {
		remove, is := action.(Remove)
		if of := view.Groups.ByUnitUID(remove.For); !is || of == nil || of.Parent() == nil {
			continue
		}
		g = view.Groups.ByUnitUID(remove.For)
		if victim := view.Cluster.Pod(remove.Victim.UID); victim.Class.Priority >= g.Priority() {
			w.breaks("%s of priority %d leaves for a tree of %d", victim.Name(), victim.Class.Priority, g.Priority())
		}
	}
	if g == nil {
		return
	}
	treePreemptions.Add(1)

	has := map[*groups.Group]int{}
	asked := map[*cluster.Node]int64{}
	for _, g := range g.Tree() {
		for uid := range g.Members {
			nominated := view.Cluster.Nominated(uid)
			if nominated == nil {
				continue
			}
			if n := view.Cluster.Node(nominated.Nominated); n != nil {
				has[g]++
				asked[n] += nominated.Class.Requests.MilliCPU
			}
		}
	}
	yielding := w.core.Books().Yielding
	for _, action := range actions { // victims whose binding has not begun, which are still counted on their node
		if tell, is := action.(RecordEvent); is && tell.Reason == "Preempted" {
			yielding = append(yielding, tell.Regarding.UID)
		}
	}
	for n, cpu := range asked {
		for _, p := range n.Pods {
			if !p.Terminating && !slices.Contains(yielding, p.UID()) {
				cpu += p.Class.Requests.MilliCPU
			}
		}
		if cpu > n.Size.MilliCPU {
			w.breaks("pods leave for a tree, and node %s has %dm for %dm", n.Name, n.Size.MilliCPU, cpu)
		}
	}
	if !w.wouldHold(groups.Child{Composite: g.Root()}, has) {
		w.breaks("pods leave for a tree, and too few groups are nominated")
	}
}

// wouldHold reports whether a tree meets its requirement once its nominated pods are placed.
func (w *world) wouldHold(of groups.Child, has map[*groups.Group]int) bool {
	if g := of.Group; g != nil {
		count := has[g]
		for uid := range g.Counted {
			if w.core.View().Cluster.Pod(uid) != nil {
				count++
			}
		}
		return count >= max(1, g.MinCount()) || g.Done || g.Scheduled()
	}
	c, count := of.Composite, 0
	for _, child := range c.Children() {
		if w.wouldHold(child, has) {
			count++
		}
	}
	return count >= c.MinGroupCount() || slices.ContainsFunc(c.Leaves(), func(g *groups.Group) bool { return g.Done || g.Scheduled() })
}

// withoutLower returns the true state of the cluster without the potential victims of a tree.
func (c *chaos) withoutLower() *cluster.Cluster {
	truth := cluster.New()
	for _, name := range sorted(c.nodes) {
		truth.SetNode(c.nodes[name])
	}
	for _, uid := range sorted(c.pods) {
		p := c.pods[uid]
		if p.Spec.NodeName != "" && (*p.Spec.Priority >= c.gangs.treePriority || slices.Contains(c.gangs.ofTrees, groups.NameOf(p))) {
			truth.SetPod(p)
		}
	}
	return truth
}
