// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"math"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// Units determines which pods leave together, and which may be evicted for a preemptor. A unit is a
// single pod, all pods of a group disrupted as a whole, or all pods of the highest composite group
// disrupted as a whole.
type Units struct {
	Cluster *cluster.Cluster
	Groups  *groups.Set
}

// UnitOf returns the pods that leave together with a victim, the victim first.
func (u Units) UnitOf(victim *cluster.Pod) []*cluster.Pod {
	unit := []*cluster.Pod{victim}
	if g := u.Groups.GroupOf(victim.UID()); g != nil && g.Whole() {
		unit = append(unit, slices.DeleteFunc(u.Together(g), func(p *cluster.Pod) bool { return p == victim })...)
	}
	return unit
}

// Complete adds to victims the pods that leave together with them.
func (u Units) Complete(victims []*cluster.Pod) (all []*cluster.Pod) {
	if !u.Groups.AnyWhole() {
		return victims
	}
	for _, victim := range victims {
		if !slices.Contains(all, victim) {
			all = append(all, u.UnitOf(victim)...)
		}
	}
	return all
}

// OnNodes lists the pods of groups that are counted on nodes, sorted by UID.
func (u Units) OnNodes(of ...*groups.Group) (list []*cluster.Pod) {
	for _, g := range of {
		for uid := range g.Members {
			if p := u.Cluster.Pod(uid); p != nil && p.Node != nil {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(a, b *cluster.Pod) int { return cmp.Compare(a.UID(), b.UID()) })
	return list
}

// Together lists all pods on nodes that leave together with the pods of a group, including the
// group's own pods.
func (u Units) Together(g *groups.Group) []*cluster.Pod { return u.OnNodes(g.Together()...) }

// BreakBudget reports whether a disruption budget forbids evicting all of the pods. Terminating
// pods do not count.
func (u Units) BreakBudget(pods []*cluster.Pod) bool {
	leave := map[*cluster.Budget]int32{}
	for _, p := range pods {
		for _, budget := range u.Cluster.BudgetsOf(p.Class) {
			if _, counted := budget.Status.DisruptedPods[p.Name()]; !counted && !p.Terminating {
				leave[budget]++
			}
		}
	}

	for budget, n := range leave {
		if allowed := budget.Status.DisruptionsAllowed; allowed-n < min(0, allowed) {
			return true
		}
	}
	return false
}

// CountViolations counts the pods whose eviction violates a disruption budget if all pods of the
// units are evicted in order.
func (u Units) CountViolations(units [][]*cluster.Pod) (violations int) {
	left := map[*cluster.Budget]int32{}
	for _, p := range slices.Concat(units...) {
		for _, budget := range u.Cluster.BudgetsOf(p.Class) {
			if _, counted := budget.Status.DisruptedPods[p.Name()]; counted || p.Terminating {
				continue
			}
			if _, known := left[budget]; !known {
				left[budget] = budget.Status.DisruptionsAllowed
			}
			if left[budget]--; left[budget] < 0 {
				violations++
				break // the budgets after the first violated budget are not decremented
			}
		}
	}
	return violations
}

// A Preemptor is a pod or a group that looks for victims.
type Preemptor struct {
	Group           *groups.Group // nil for a lone pod
	Lowest, Highest int32         // priorities of its pods; for a lone pod, both are its own priority
	// Gentle is set if the profile spares all groups with at least the preemptor's priority. The
	// successor of an evicted pod of such a group would wait with the group's priority, and could
	// preempt the preemptor in turn.
	Gentle bool
	// Spares, if set, reports whether a running pod must be spared for its run time.
	Spares func(*cluster.Pod) bool
}

// Protect keeps pods from being chosen as victims for reasons invisible to a search on their nodes:
// they belong to the tree of the preemptor's group, or their group leaves as a whole (or, with
// Gentle, in any way) and is at least as important as the preemptor. With budgets, it also protects
// groups that leave as a whole and cannot leave without violating a budget. The caller must release
// the protected pods.
func (u Units) Protect(preemptor Preemptor, budgets bool) *ProtectedPods {
	protected := &ProtectedPods{cluster: u.Cluster}
	if preemptor.Group != nil {
		for _, p := range u.OnNodes(preemptor.Group.Tree()...) {
			protected.addBelow(p, preemptor.Highest)
		}
	}
	if preemptor.Spares != nil {
		u.protectStarted(protected, preemptor)
	}
	if !preemptor.Gentle && !u.Groups.AnyWhole() {
		return protected
	}

	for _, g := range u.Groups.Sorted() {
		if g.SharesTree(preemptor.Group) || g.Object == nil || !preemptor.Gentle && !g.Whole() {
			continue
		}
		unit := u.Together(g)
		if g.Priority() < preemptor.Lowest && !(g.Whole() && budgets && u.BreakBudget(unit)) {
			continue
		}
		for _, p := range unit {
			if g.Whole() || !p.Preempted {
				protected.addBelow(p, preemptor.Lowest)
			}
		}
	}

	return protected
}

// mostSpared bounds the pods spared for their start time, because protecting a pod costs a digest.
// The most recently started ones are spared first.
const mostSpared = 1000

// protectStarted protects the pods that the preemptor spares for their run time. Pods that have not
// started yet lose no work, and a terminating pod is no victim.
func (u Units) protectStarted(protected *ProtectedPods, preemptor Preemptor) {
	var recent []*cluster.Pod
	for _, n := range u.Cluster.Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			if !p.Started.IsZero() && !p.Terminating && p.Class.Priority < preemptor.Lowest && preemptor.Spares(p) {
				recent = append(recent, p)
			}
		}
	}
	slices.SortFunc(recent, func(a, b *cluster.Pod) int {
		return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(a.UID(), b.UID()))
	})
	for _, p := range recent[:min(len(recent), mostSpared)] {
		protected.addBelow(p, preemptor.Lowest)
	}
}

// ProtectedPods holds pods that are counted on their nodes with the maximum priority, so that no
// search for victims chooses them. The step that protects pods must also release them.
type ProtectedPods struct {
	cluster *cluster.Cluster
	pods    []*cluster.Pod // the original pods
}

// Len returns the number of protected pods.
func (s *ProtectedPods) Len() int { return len(s.pods) }

// addBelow protects a pod if a preemptor with the given priority could choose it.
func (s *ProtectedPods) addBelow(p *cluster.Pod, priority int32) {
	if p.Class.Priority < priority {
		replacePod(s.cluster, p, p.Node)
		s.pods = append(s.pods, p)
	}
}

// Release restores the pods. A second call does nothing.
func (s *ProtectedPods) Release() {
	for _, p := range s.pods {
		n := s.cluster.Pod(p.UID()).Node
		s.cluster.RemovePod(p.UID())
		s.cluster.Place(p, n)
	}
	s.pods = nil
}

// replacePod replaces a pod counted on a node by a copy with the maximum priority.
func replacePod(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) {
	raised := *p
	c.RemovePod(p.UID())
	raised.SetNodeName(p.NodeName)
	raised.Class = topPriority(c, p)
	c.Place(&raised, n)
}

// topPriority returns the class of a pod with the maximum priority.
func topPriority(c *cluster.Cluster, p *cluster.Pod) *cluster.PodClass {
	as := p.Object()
	as.Spec.Priority = new(int32(math.MaxInt32))
	return c.Pending(as).Class
}

// ProtectNominations protects the nominations of lower-priority pods from a pod of the given
// priority, until release is called.
func ProtectNominations(c *cluster.Cluster, priority int32) (release func()) {
	var were []*cluster.Pod
	for _, n := range c.NominatedNodes() {
		for _, p := range slices.Clone(n.Nominated) {
			if p.Class.Priority < priority {
				raised := *p
				raised.Class = topPriority(c, p)
				c.Nominate(&raised, n.Name)
				were = append(were, p)
			}
		}
	}

	return func() {
		for _, p := range were {
			c.Nominate(p, p.Nominated)
		}
	}
}

// compareImportance orders units like upstream, the most important first: by priority, then by kind
// (units below a composite disrupted as a whole, then other pods of groups, then pods without a
// group), then by the number of pods, and finally by the running time of their first pod.
func (u Units) compareImportance(x, y []*cluster.Pod) int {
	px, kindX := u.rankOf(x[0])
	py, kindY := u.rankOf(y[0])
	return cmp.Or(
		cmp.Compare(py, px),
		cmp.Compare(kindY, kindX),
		cmp.Compare(len(y), len(x)),
		firstStarted(x).Compare(firstStarted(y)),
		cmp.Compare(x[0].UID(), y[0].UID()),
	)
}

// rankOf returns the priority and the kind of a pod's unit.
func (u Units) rankOf(p *cluster.Pod) (priority int32, kind int) {
	g := u.Groups.GroupOf(p.UID())
	switch {
	case g == nil || g.Object == nil:
		return p.Class.Priority, 0
	case g.WholeAbove():
		return g.Priority(), 2
	}
	return g.Priority(), 1
}

func firstStarted(unit []*cluster.Pod) cluster.Time {
	return slices.MinFunc(unit, func(a, b *cluster.Pod) int { return a.Started.Compare(b.Started) }).Started
}
