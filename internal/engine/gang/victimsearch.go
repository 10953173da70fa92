// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// victimSearch finds the pods to evict so that a set of pods fits on the nodes to which it is
// currently confined. At first it removes more pods than necessary, then it reprieves some of them.
// All removals and placements are hypothetical, and it restores the cluster. Every function that
// removes pods returns whole units.
type victimSearch struct {
	*Request // request of the group; for a tree, a joint request of all its groups
	bound    *Bound
	pods     podSet
}

// podSet is the set of pods that need room: the members of a group or of all groups of a tree.
// Placed pods stay on their nodes until rewind.
type podSet interface {
	// fit places the unplaced pods in one order, and reports whether all needed pods are placed. If
	// not, some pods may be placed.
	fit() bool
	// fitAnyhow is like fit, but may place the pods in any order.
	fitAnyhow() bool
	// find removes other pods until the pods of the set fit. If ok is false, no pod of the set is
	// placed.
	find(gone *RemovedPods) (units [][]*cluster.Pod, ok bool)
	// refit places the pods again after a successful find.
	refit() bool
	// placeAgain places all pods again, in any order. If they do not fit, it restores the previous
	// placement.
	placeAgain() bool
	// rewind takes the pods off their nodes.
	rewind()
	// placers returns the placers of the placed groups.
	placers() []*Placer
	// differ reports whether the order of placing the pods may matter.
	differ() bool
	// fewestToEnd is the number of pods that must end before fit is tried again, after some pods
	// ended and it failed.
	fewestToEnd(ended int) int
	// leastTogether is the minimum CPU and memory requested by the pods.
	leastTogether() amounts
}

// plan returns a plan for the pods within their current confinement.
func (c *victimSearch) plan() *RoomPlan {
	gone := Without(c.Cluster)
	defer gone.RestoreAfter(0)
	c.removeLeaving(gone)
	defer c.pods.rewind()

	if c.Profile.GentlePreemption {
		if p := c.planBeside(gone); p != nil || c.isDelayed() {
			return p
		}
	}
	if c.pods.fit() || gone.Len() > 0 && c.pods.differ() && c.pods.fitAnyhow() {
		return c.describePlan(nil, gone.Len() > 0)
	}
	c.pods.rewind()

	// The removal of other pods may release devices for the members.
	if slices.ContainsFunc(c.Members, func(m *Member) bool { return c.Profile.PreemptedDevices(c.Cluster, m.Asked) != nil }) {
		defer c.Cluster.ReleaseClaims()()
		if c.pods.fit() || c.pods.differ() && c.pods.fitAnyhow() { // once the claims of pods that have left are released
			return c.describePlan(nil, true)
		}
		c.pods.rewind()
	}

	victims, ok := c.findVictims(gone)
	if !ok || !c.pods.refit() {
		return nil
	}

	victims = c.exchangeVictims(c.reprieveVictims(victims, gone), gone)
	if c.keepsBudgets() && c.Units.BreakBudget(slices.Concat(victims...)) {
		return nil
	}
	return c.describePlan(victims, len(victims)+gone.Len() > 0)
}

// removeLeaving removes preempted pods that are still terminating. If this frees enough room, no
// other pod must be evicted.
func (c *victimSearch) removeLeaving(gone *RemovedPods) {
	highest := c.highestPriority()
	for _, p := range c.Host.Leaving() {
		if c.Profile.GentlePreemption || p.Class.Priority < highest || c.isLowUnit(c.Units.Groups.GroupOf(p.UID())) {
			gone.Remove(p)
		}
	}
}

// planBeside returns a plan without victims that does not use the room of nominated pods.
func (c *victimSearch) planBeside(gone *RemovedPods) *RoomPlan {
	defer ProtectNominations(c.Cluster, c.LowestPriority())()
	defer c.pods.rewind()
	if gone.Len() == 0 || !c.pods.fit() {
		return nil
	}
	p := c.describePlan(nil, true)
	p.Beside = true
	return p
}

// describePlan returns the current placement as a plan, with the units to evict for it.
func (c *victimSearch) describePlan(victims [][]*cluster.Pod, waits bool) *RoomPlan {
	p := &RoomPlan{Victims: victims, Waits: waits}
	for _, by := range c.pods.placers() {
		for _, m := range by.tentative.placed {
			p.Places = append(p.Places, Place{m, decide.Decision{Node: m.Node}, by.Host.DevicesOf(m)})
		}
	}
	return p
}

// victimRule returns the rule for pods that may be evicted for the group. Pods that have already
// been preempted leave at no cost.
func (c *victimSearch) victimRule() leaveRule {
	highest := c.highestPriority()
	return func(p *cluster.Pod) (priority int64, leaves bool) {
		if p.Preempted {
			return leftAlready, true
		}
		return int64(p.Class.Priority), p.Class.Priority < highest || c.isLowUnit(c.Units.Groups.GroupOf(p.UID()))
	}
}

// findVictims removes pods until the pod set fits. It first protects all groups that are too
// important, and all groups that cannot leave as a whole without violating a budget. If this fails,
// it protects only the groups that are too important. If this fails as well, it removes groups of
// lower priority even if their pods have a higher priority.
func (c *victimSearch) findVictims(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	protected := c.protect(true)
	most := protected.Len()
	units, ok = c.findUnprotected(gone, protected)

	if !ok && most > 0 && !c.keepsBudgets() {
		if protected = c.protect(false); protected.Len() < most { // otherwise budgets protected no additional pod
			units, ok = c.findUnprotected(gone, protected)
		}
		protected.Release()
	}
	if !ok {
		units, ok = c.removeLowUnits(gone)
	}
	return units, ok
}

func (c *victimSearch) protect(budgets bool) *ProtectedPods {
	preemptor := Preemptor{
		Group: c.Group, Lowest: c.LowestPriority(), Highest: c.highestPriority(), Gentle: c.Profile.GentlePreemption,
	}
	return c.Units.Protect(preemptor, budgets)
}

// findUnprotected removes pods outside protected, then releases protected. If ok is false, the
// removed pods are restored.
func (c *victimSearch) findUnprotected(gone *RemovedPods, protected *ProtectedPods) (units [][]*cluster.Pod, ok bool) {
	before := gone.Len()
	defer protected.Release()
	if units, ok = c.pods.find(gone); !ok {
		gone.RestoreAfter(before)
	}
	return units, ok
}

// removeAllLower removes all pods less important than every member from the nodes within (nil: from
// all nodes), and searches for a placement.
// If the members still fit afterwards, it restores all units without pods on the members' nodes in
// one step.
func (c *victimSearch) removeAllLower(gone *RemovedPods, within func(*cluster.Node) bool) (units [][]*cluster.Pod, ok bool) {
	for n := range c.eachNode {
		if c.bound.isSpent() {
			return nil, false
		}
		if within != nil && !within(n) {
			continue
		}
		units = append(units, c.removeLowerFrom(n, gone)...)
	}
	if gone.Len() == 0 || !c.pods.fitAnyhow() {
		return nil, false
	}

	needed, others := c.splitByUse(units, gone)
	c.pods.rewind()
	for _, unit := range others {
		gone.Restore(unit)
	}
	if c.pods.fitAnyhow() {
		return needed, true
	}

	// The other units affected more than room: a pod that matches its own affinity may be placed as
	// the first of its kind only if no matching pod exists anywhere. Return all units, so that they
	// are reprieved one by one.
	c.pods.rewind()
	for _, unit := range others {
		gone.Remove(unit...)
	}
	return append(needed, others...), c.pods.fitAnyhow()
}

// splitByUse splits units into those with a pod on a node of a placed member, and the remaining
// units.
func (c *victimSearch) splitByUse(units [][]*cluster.Pod, gone *RemovedPods) (needed, others [][]*cluster.Pod) {
	taken := c.takenNodes()
	for _, unit := range units {
		if slices.ContainsFunc(unit, func(p *cluster.Pod) bool { return taken[gone.NodeOf(p)] }) {
			needed = append(needed, unit)
		} else {
			others = append(others, unit)
		}
	}
	return needed, others
}

// takenNodes returns the nodes of placed members.
func (c *victimSearch) takenNodes() map[*cluster.Node]bool {
	taken := map[*cluster.Node]bool{}
	for _, p := range c.pods.placers() {
		for _, m := range p.tentative.placed {
			taken[m.Node] = true
		}
	}
	return taken
}

// removeLowerFrom removes the pods on a node that are less important than every member.
func (c *victimSearch) removeLowerFrom(n *cluster.Node, gone *RemovedPods) (units [][]*cluster.Pod) {
	lowest := c.LowestPriority()
	for _, p := range slices.Clone(n.Pods) {
		if p.Node == nil || p.Class.Priority >= lowest || c.Units.Groups.GroupOf(p.UID()).SharesTree(c.Group) {
			continue
		}
		unit := c.Units.UnitOf(p)
		if c.keepsBudgets() && c.Units.BreakBudget(unit) {
			continue
		}
		c.bound.addEffort(costOfRemoval * len(unit))
		gone.Remove(unit...)
		units = append(units, unit)
	}
	return units
}

// isLowUnit reports whether a group leaves only as a whole and has a lower priority than the
// members. The priorities of its pods are ignored.
func (c *victimSearch) isLowUnit(g *groups.Group) bool {
	return g != nil && !g.SharesTree(c.Group) && g.Whole() && g.Priority() < c.LowestPriority()
}

// removeLowUnits also removes the groups selected by isLowUnit, the lowest priority first, until
// the pod set fits. The search on nodes ignores them because it only considers the priorities of
// pods. If ok is false, removed pods stay removed.
func (c *victimSearch) removeLowUnits(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	low := slices.DeleteFunc(slices.Clone(c.Units.Groups.Sorted()), func(g *groups.Group) bool { return !c.isLowUnit(g) })
	slices.SortStableFunc(low, func(x, y *groups.Group) int { return cmp.Compare(x.Priority(), y.Priority()) })
	for _, g := range low {
		if c.bound.isSpent() {
			return nil, false
		}
		unit := c.Units.Together(g)
		if len(unit) == 0 || c.keepsBudgets() && c.Units.BreakBudget(unit) {
			continue
		}

		gone.Remove(unit...)
		units = append(units, unit)
		if more, ok := c.findUnprotected(gone, c.protect(c.keepsBudgets())); ok {
			return append(units, more...), true
		}
	}

	return nil, false
}

// reprieveVictims puts unneeded units back until the effort is exhausted, and returns the other
// units.
func (c *victimSearch) reprieveVictims(units [][]*cluster.Pod, gone *RemovedPods) (leave [][]*cluster.Pod) {
	c.sortForReprieve(units)
	defer c.bound.extendPart()() // gives the reprieve at least half of the bound
	together := c.pods.leastTogether()
	for _, unit := range units {
		if c.bound.isSpentTwice() || !c.reprieve(unit, gone, together) {
			leave = append(leave, unit)
		}
	}
	return leave
}

// sortForReprieve orders units for reprieve: first the units that violate a budget by leaving, then
// the other units, each in order of importance.
func (c *victimSearch) sortForReprieve(units [][]*cluster.Pod) {
	breaks := map[*cluster.Pod]bool{}
	for _, unit := range units {
		breaks[unit[0]] = c.Units.BreakBudget(unit)
	}
	slices.SortStableFunc(units, func(x, y []*cluster.Pod) int {
		return cmp.Or(rules.FalseFirst(!breaks[x[0]], !breaks[y[0]]), c.Units.compareImportance(x, y))
	})
}

// reprieve puts a unit back if the pods still fit. Otherwise it changes nothing. At first only the
// members on the unit's nodes move. If this fails and the members differ, all members are placed
// again, in any order, unless their total request exceeds the free room.
func (c *victimSearch) reprieve(unit []*cluster.Pod, gone *RemovedPods, together amounts) bool {
	moving := c.takeFrom(rules.Mapped(unit, gone.NodeOf))
	gone.Restore(unit)
	c.bound.addEffort(costOfRemoval * len(unit))

	if !slices.ContainsFunc(moving, func(m movingMembers) bool { return !m.placer.passFits() }) && c.fitsBeside(unit) {
		return true
	}
	for _, m := range slices.Backward(moving) {
		m.placer.tentative.Rewind(m.stay)
	}
	if c.pods.differ() && !c.bound.isSpent() && c.isFree(together) && c.pods.placeAgain() {
		return true
	}

	gone.Remove(unit...)
	for _, m := range moving {
		m.placer.tentative.PlaceAll(m.were)
	}
	return false
}

// fitsBeside reports whether all members may stay on their nodes after a unit was put back.
// Affinity terms of the unit or of a member may take effect on any node, so the members concerned
// are judged again.
func (c *victimSearch) fitsBeside(unit []*cluster.Pod) bool {
	matters := slices.ContainsFunc(unit, func(p *cluster.Pod) bool { return p.Class.HasAffinity() })
	for _, p := range c.pods.placers() {
		for _, m := range p.tentative.placed {
			class := m.Waiting.Class
			if !matters && !class.HasAffinity() && len(class.Spec.TopologySpreadConstraints) == 0 {
				continue
			}
			c.bound.addEffort(costOfDecision)
			if !p.tentative.fitsAgain(m, c.Decider.Plain()) {
				return false
			}
		}
	}
	return true
}

// movingMembers are members of a group taken off their nodes.
type movingMembers struct {
	placer *Placer
	were   []Place
	stay   int // number of other placed members
}

// takeFrom takes the members off some nodes.
func (c *victimSearch) takeFrom(nodes []*cluster.Node) (moving []movingMembers) {
	for _, p := range c.pods.placers() {
		were := p.tentative.removeFrom(nodes)
		moving = append(moving, movingMembers{p, were, len(p.tentative.placed)})
	}
	return moving
}

// isFree reports whether the CPU and memory that are free on all nodes, or used by members, suffice
// for the wanted amounts.
func (c *victimSearch) isFree(wanted amounts) bool {
	if c.roomFilter() == nil {
		return true
	}

	var free amounts
	for i := range c.Cluster.Rooms {
		room := &c.Cluster.Rooms[i]
		free = free.plus(amounts{room.CPU - room.RequestedCPU, room.Memory - room.RequestedMemory}.atLeastZero())
	}
	for _, p := range c.pods.placers() {
		for _, m := range p.tentative.placed {
			free = free.plus(requestOf(m.Waiting.Class, ""))
		}
	}
	return free[ofCPU] >= wanted[ofCPU] && free[ofMemory] >= wanted[ofMemory]
}
