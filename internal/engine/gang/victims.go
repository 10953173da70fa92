package gang

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// How a [RoomMaker] finds victims: more than are needed, some of which are reprieved afterwards.
// Every function here returns the units that it removed, each in one piece.

// findVictims removes pods until enough members fit. First groups are protected whose leaving as a
// whole would break a budget; then only those that are too important; at last groups leave that are
// low although their pods are not.
func (r *RoomMaker) findVictims(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	protected := r.protect(true)
	most := protected.Len()
	units, ok = r.findUnprotected(gone, protected)

	if !ok && most > 0 && !r.keepsBudgets() {
		if protected = r.protect(false); protected.Len() < most { // else no budget made the difference
			units, ok = r.findUnprotected(gone, protected)
		}
		protected.Release()
	}
	if !ok {
		units, ok = r.removeLowUnits(gone)
	}
	return units, ok
}

func (r *RoomMaker) protect(budgets bool) *ProtectedPods {
	by := Preemptor{
		Group: r.Group, Lowest: r.LowestPriority(), Highest: r.highestPriority(), Gentle: r.Profile.GentlePreemption,
	}
	return r.Units.Protect(by, budgets)
}

// findUnprotected removes pods while others are protected, then releases those. If it is not ok,
// the pods that it removed are back.
func (r *RoomMaker) findUnprotected(gone *RemovedPods, protected *ProtectedPods) (units [][]*cluster.Pod, ok bool) {
	before := gone.Len()
	defer protected.Release()
	units, ok = r.findInSomeOrder(gone)

	r.arranged = r.tentative.listPlaces()
	r.tentative.Rewind(0)
	if !ok {
		gone.RestoreAfter(before)
	}
	return units, ok
}

// findInSomeOrder finds victims for the members in their order and, where they differ and that does
// not suffice, in other orders. At last it searches for a placement on nodes that all pods of lower
// priority have left, as upstream does first: it takes more pods than are needed.
func (r *RoomMaker) findInSomeOrder(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	before := gone.Len()
	if units, ok = r.findOneByOne(gone, r.Members); ok || !r.orderMatters() {
		return units, ok
	}

	for _, order := range []func() []*Member{r.placer.orderBySize, r.placer.orderByFailure} {
		if r.bound.isSpent() {
			return nil, false
		}
		ordered := order()
		r.tentative.Rewind(0)
		gone.RestoreAfter(before)
		if units, ok = r.findOneByOne(gone, ordered); ok {
			return units, true
		}
	}

	r.tentative.Rewind(0)
	gone.RestoreAfter(before)
	return r.removeAllLower(gone)
}

// findOneByOne places members one after the other. If one fits nowhere, its victims are removed as
// for a single pod, with all pods that leave together with them. It is not ok if too few can be
// placed.
func (r *RoomMaker) findOneByOne(gone *RemovedPods, order []*Member) (units [][]*cluster.Pod, ok bool) {
	hopeless, highest := failures{}, r.highestPriority()
	for _, m := range order {
		if hopeless.find(m, r.Cluster.Log.Len()) != nil {
			continue
		}
		if r.bound.isOver() {
			r.bound.shortened = true
			break
		}
		if placed, err := r.placer.tryMember(m); err != nil {
			return nil, false
		} else if placed {
			r.tentative.protectMember(m, highest)
			continue
		}

		r.bound.addEffort(costOfPreemption)
		found := r.Decider.Preempt(m.Asked)
		if found.Node == nil {
			if found.Err == nil {
				hopeless.note(m, r.Cluster.Log.Len())
				r.noteRejectors(m, found.Plugins, gone.Len() > 0)
			}
			continue
		}

		removed, ok := r.removeVictims(found.Victims, gone)
		if !ok || r.tentative.Place(m, decide.Decision{Node: found.Node}) != nil {
			return nil, false
		}
		units = append(units, removed...)
		r.tentative.protectMember(m, highest)
	}

	return units, r.placer.hasEnough()
}

// removeVictims removes the units of a member's victims. It is not ok if one of these was placed in
// this attempt, so that it was not protected.
func (r *RoomMaker) removeVictims(victims []*cluster.Pod, gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	for _, victim := range victims {
		if victim.Node == nil {
			continue // it left together with another one
		}
		if r.Units.Groups.Of(victim.UID).SharesTree(r.Group) {
			return nil, false
		}
		unit := r.Units.Of(victim)
		r.bound.addEffort(costOfRemoval * len(unit))
		gone.Remove(unit...)
		units = append(units, unit)
	}
	return units, true
}

// noteRejectors notes what rejects a member for which no victims were found: that may be what it
// has to wait for. If the cluster was changed before, it may be other plugins than as things are.
func (r *RoomMaker) noteRejectors(m *Member, refused []string, changed bool) {
	m.Rejectors = WithNames(m.Rejectors, refused)
	if !changed && len(r.tentative.placed) == 0 {
		return
	}
	now := r.Decider.Diagnose(m.Asked)
	m.Rejectors = WithNames(m.Rejectors, now.Plugins)
	if now.Rejector != "" {
		m.Rejectors = WithNames(m.Rejectors, []string{now.Rejector})
	}
}

// removeAllLower removes all pods that are less important than every member, searches for a
// placement, and restores those at once that are on nodes without members, if that is possible.
func (r *RoomMaker) removeAllLower(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	for n := range r.eachNode {
		if r.bound.isSpent() {
			return nil, false
		}
		units = append(units, r.removeLowerFrom(n, gone)...)
	}
	if gone.Len() == 0 || !r.placer.placeAnyhow() {
		return nil, false
	}

	needed, others := r.splitByUse(units, gone)
	r.tentative.Rewind(0)
	for _, unit := range others {
		gone.Restore(unit)
	}
	if r.placer.placeAnyhow() {
		return needed, true
	}

	// It was no room that the others took: a pod that is the first of its series fits only where no
	// pod that it wants to be near is anywhere. Those that may stay are found one by one.
	r.tentative.Rewind(0)
	for _, unit := range others {
		gone.Remove(unit...)
	}
	return append(needed, others...), r.placer.placeAnyhow()
}

// splitByUse splits units into those with a pod on a node that a member is counted on, and others.
func (r *RoomMaker) splitByUse(units [][]*cluster.Pod, gone *RemovedPods) (needed, others [][]*cluster.Pod) {
	taken := map[*cluster.Node]bool{}
	for _, m := range r.tentative.placed {
		taken[m.Node] = true
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
func (r *RoomMaker) removeLowerFrom(n *cluster.Node, gone *RemovedPods) (units [][]*cluster.Pod) {
	lowest := r.LowestPriority()
	for _, p := range slices.Clone(n.Pods) {
		if p.Node == nil || p.Class.Priority >= lowest || r.Units.Groups.Of(p.UID).SharesTree(r.Group) {
			continue
		}
		unit := r.Units.Of(p)
		if r.keepsBudgets() && r.Units.BreakBudget(unit) {
			continue
		}
		r.bound.addEffort(costOfRemoval * len(unit))
		gone.Remove(unit...)
		units = append(units, unit)
	}
	return units
}

// isLowUnit tells whether a group leaves only as a whole, and its priority is below that of the
// members, whatever the priorities of its pods are.
func (r *RoomMaker) isLowUnit(g *groups.Group) bool {
	return g != nil && !g.SharesTree(r.Group) && g.Whole() && g.Priority() < r.LowestPriority()
}

// removeLowUnits removes such groups, too, the lowest first, until that is enough: a search on
// nodes sees the priorities of their pods. If it is not ok, what it removed stays away.
func (r *RoomMaker) removeLowUnits(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	low := slices.DeleteFunc(slices.Clone(r.Units.Groups.Sorted()), func(g *groups.Group) bool { return !r.isLowUnit(g) })
	slices.SortStableFunc(low, func(x, y *groups.Group) int { return cmp.Compare(x.Priority(), y.Priority()) })
	for _, g := range low {
		if r.bound.isSpent() {
			return nil, false
		}
		unit := r.Units.Together(g)
		if len(unit) == 0 || r.keepsBudgets() && r.Units.BreakBudget(unit) {
			continue
		}

		gone.Remove(unit...)
		units = append(units, unit)
		if more, ok := r.findUnprotected(gone, r.protect(r.keepsBudgets())); ok {
			return append(units, more...), true
		}
	}

	return nil, false
}
