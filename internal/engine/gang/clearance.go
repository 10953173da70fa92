package gang

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// clearance finds the pods that have to leave so that a crew fits on the nodes that it is confined
// to now: more than are needed, some of which are reprieved afterwards. It leaves the cluster as it
// was: what it removes and places is hypothetical. Every function that removes returns the units
// that it removed, each in one piece.
type clearance struct {
	*Request // of the group; for a tree, of all its groups together
	bound    *Bound
	crew     crew
}

// crew is what room is made for: the members of a group, or those of all groups of a tree. What it
// places stays on its nodes until it is taken off again.
type crew interface {
	// fit places the crew in one order, after what is placed of it already, and tells whether it is
	// placed now. If not, a part of it may be.
	fit() bool
	// fitAnyhow is fit, in any order.
	fitAnyhow() bool
	// find removes pods until the crew fits. If it is not ok, nothing of the crew is placed.
	find(gone *RemovedPods) (units [][]*cluster.Pod, ok bool)
	// refit places the crew again once find was ok.
	refit() bool
	// anew places the crew anew, in any order. If it does not fit, it is placed as before.
	anew() bool
	// rewind takes the crew off its nodes.
	rewind()
	// placers are those of the groups that are placed.
	placers() []*Placer
	// differ tells whether it may matter in which order the crew is placed.
	differ() bool
	// leastTogether is the least CPU and memory that it requests.
	leastTogether() amounts
}

// plan plans for the crew as it is confined now.
func (c *clearance) plan() *RoomPlan {
	gone := Without(c.Cluster)
	defer gone.RestoreAfter(0)
	c.removeLeaving(gone)
	defer c.crew.rewind()

	if c.Profile.GentlePreemption {
		if p := c.planBeside(gone); p != nil || c.isDelayed() {
			return p
		}
	}
	if c.crew.fit() || gone.Len() > 0 && c.crew.differ() && c.crew.fitAnyhow() {
		return c.describePlan(nil, gone.Len() > 0)
	}
	c.crew.rewind()

	victims, ok := c.findVictims(gone)
	if !ok || !c.crew.refit() {
		return nil
	}

	victims = c.reprieveVictims(victims, gone)
	if c.keepsBudgets() && c.Units.BreakBudget(slices.Concat(victims...)) {
		return nil
	}
	return c.describePlan(victims, len(victims)+gone.Len() > 0)
}

// removeLeaving removes pods that were preempted before and are leaving: if that is enough, no
// other pod has to leave.
func (c *clearance) removeLeaving(gone *RemovedPods) {
	highest := c.highestPriority()
	for _, p := range c.Host.Leaving() {
		if c.Profile.GentlePreemption || p.Class.Priority < highest || c.isLowUnit(c.Units.Groups.Of(p.UID)) {
			gone.Remove(p)
		}
	}
}

// planBeside plans without victims, and beside all pods that are nominated to nodes.
func (c *clearance) planBeside(gone *RemovedPods) *RoomPlan {
	defer ProtectNominations(c.Cluster, c.LowestPriority())()
	defer c.crew.rewind()
	if gone.Len() == 0 || !c.crew.fit() {
		return nil
	}
	p := c.describePlan(nil, true)
	p.Beside = true
	return p
}

// describePlan returns the placement that is counted now, with the units that leave for it.
func (c *clearance) describePlan(victims [][]*cluster.Pod, waits bool) *RoomPlan {
	p := &RoomPlan{Victims: victims, Waits: waits}
	for _, by := range c.crew.placers() {
		for _, m := range by.tentative.placed {
			p.Places = append(p.Places, Place{m, decide.Decision{Node: m.Node}})
		}
	}
	return p
}

// victimRule is which pods may leave for the group. Those that leave already cost nothing.
func (c *clearance) victimRule() leaveRule {
	highest := c.highestPriority()
	return func(p *cluster.Pod) (priority int64, leaves bool) {
		if p.Preempted {
			return leftAlready, true
		}
		return int64(p.Class.Priority), p.Class.Priority < highest || c.isLowUnit(c.Units.Groups.Of(p.UID))
	}
}

// findVictims removes pods until the crew fits. First groups are protected whose leaving as a
// whole would break a budget; then only those that are too important; at last groups leave that are
// low although their pods are not.
func (c *clearance) findVictims(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	protected := c.protect(true)
	most := protected.Len()
	units, ok = c.findUnprotected(gone, protected)

	if !ok && most > 0 && !c.keepsBudgets() {
		if protected = c.protect(false); protected.Len() < most { // else no budget made the difference
			units, ok = c.findUnprotected(gone, protected)
		}
		protected.Release()
	}
	if !ok {
		units, ok = c.removeLowUnits(gone)
	}
	return units, ok
}

func (c *clearance) protect(budgets bool) *ProtectedPods {
	by := Preemptor{
		Group: c.Group, Lowest: c.LowestPriority(), Highest: c.highestPriority(), Gentle: c.Profile.GentlePreemption,
	}
	return c.Units.Protect(by, budgets)
}

// findUnprotected removes pods while others are protected, then releases those. If it is not ok,
// the pods that it removed are back.
func (c *clearance) findUnprotected(gone *RemovedPods, protected *ProtectedPods) (units [][]*cluster.Pod, ok bool) {
	before := gone.Len()
	defer protected.Release()
	if units, ok = c.crew.find(gone); !ok {
		gone.RestoreAfter(before)
	}
	return units, ok
}

// removeAllLower removes all pods that are less important than every member, searches for a
// placement, and restores those at once that are on nodes without members, if that is possible.
func (c *clearance) removeAllLower(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	for n := range c.eachNode {
		if c.bound.isSpent() {
			return nil, false
		}
		units = append(units, c.removeLowerFrom(n, gone)...)
	}
	if gone.Len() == 0 || !c.crew.fitAnyhow() {
		return nil, false
	}

	needed, others := c.splitByUse(units, gone)
	c.crew.rewind()
	for _, unit := range others {
		gone.Restore(unit)
	}
	if c.crew.fitAnyhow() {
		return needed, true
	}

	// It was no room that the others took: a pod that is the first of its series fits only where no
	// pod that it wants to be near is anywhere. Those that may stay are found one by one.
	c.crew.rewind()
	for _, unit := range others {
		gone.Remove(unit...)
	}
	return append(needed, others...), c.crew.fitAnyhow()
}

// splitByUse splits units into those with a pod on a node that a member is counted on, and others.
func (c *clearance) splitByUse(units [][]*cluster.Pod, gone *RemovedPods) (needed, others [][]*cluster.Pod) {
	taken := map[*cluster.Node]bool{}
	for _, p := range c.crew.placers() {
		for _, m := range p.tentative.placed {
			taken[m.Node] = true
		}
	}
	for _, unit := range units {
		if slices.ContainsFunc(unit, func(p *cluster.Pod) bool { return taken[gone.NodeOf(p)] }) {
			needed = append(needed, unit)
		} else {
			others = append(others, unit)
		}
	}
	return needed, others
}

// removeLowerFrom removes the pods of one node that are less important than every member.
func (c *clearance) removeLowerFrom(n *cluster.Node, gone *RemovedPods) (units [][]*cluster.Pod) {
	lowest := c.LowestPriority()
	for _, p := range slices.Clone(n.Pods) {
		if p.Node == nil || p.Class.Priority >= lowest || c.Units.Groups.Of(p.UID).SharesTree(c.Group) {
			continue
		}
		unit := c.Units.Of(p)
		if c.keepsBudgets() && c.Units.BreakBudget(unit) {
			continue
		}
		c.bound.addEffort(costOfRemoval * len(unit))
		gone.Remove(unit...)
		units = append(units, unit)
	}
	return units
}

// isLowUnit tells whether a group leaves only as a whole, and its priority is below that of the
// members, whatever the priorities of its pods are.
func (c *clearance) isLowUnit(g *groups.Group) bool {
	return g != nil && !g.SharesTree(c.Group) && g.Whole() && g.Priority() < c.LowestPriority()
}

// removeLowUnits removes such groups, too, the lowest first, until that is enough: a search on
// nodes sees the priorities of their pods. If it is not ok, what it removed stays away.
func (c *clearance) removeLowUnits(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
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
