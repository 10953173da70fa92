package cycle

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// Which pods leave so that a group can be placed.

// displaceWithin displaces pods while others are shielded, then lowers the shield. If it is not ok,
// the pods that it displaced are back.
func (a *groupAttempt) displaceWithin(gone *gang.RemovedPods, stand *gang.ProtectedPods) (units [][]*cluster.Pod, ok bool) {
	before := gone.Len()
	defer stand.Release()
	units, ok = a.displaceInSomeOrder(gone)
	a.arranged = a.arranged[:0]
	for _, m := range a.placed {
		a.arranged = append(a.arranged, place{m, m.found})
	}
	a.undo(0)
	if !ok {
		gone.RestoreAfter(before)
	}
	return units, ok
}

// displaceInSomeOrder displaces pods for the members in their order and, where they differ and that
// does not suffice, in other orders. At last it searches for a placement on nodes that all pods of
// lower priority have left, as upstream does first: it takes more pods than are needed.
func (a *groupAttempt) displaceInSomeOrder(gone *gang.RemovedPods) (units [][]*cluster.Pod, ok bool) {
	before := gone.Len()
	if units, ok = a.displace(gone, a.members); ok || !a.differ() {
		return units, ok
	}

	for _, order := range []func() []*member{a.largestFirst, a.failedFirst} {
		if a.spent() {
			return nil, false
		}
		ordered := order()
		a.undo(0)
		gone.RestoreAfter(before)
		if units, ok = a.displace(gone, ordered); ok {
			return units, true
		}
	}

	a.undo(0)
	gone.RestoreAfter(before)
	return a.displaceAll(gone)
}

// displaceAll displaces all pods that are less important than every member, searches for a
// placement, and has those come back at once that are on nodes without members.
func (a *groupAttempt) displaceAll(gone *gang.RemovedPods) (units [][]*cluster.Pod, ok bool) {
	for _, n := range a.cluster.Nodes {
		if n == nil {
			continue
		}
		if a.spent() {
			return nil, false
		}
		units = append(units, a.displaceFrom(n, gone)...)
	}
	if gone.Len() == 0 || !a.placeInAnyOrder() {
		return nil, false
	}

	taken := map[*cluster.Node]bool{}
	for _, m := range a.placed {
		taken[m.found.Node] = true
	}
	a.undo(0)
	needed := units[:0]
	for _, unit := range units {
		if slices.ContainsFunc(unit, func(p *cluster.Pod) bool { return taken[gone.NodeOf(p)] }) {
			needed = append(needed, unit)
		} else {
			gone.Restore(unit)
		}
	}
	return needed, a.placeInAnyOrder()
}

// placeInAnyOrder places as many members as are needed, if there is a way. Why members fit nowhere
// as things are stays noted.
func (a *groupAttempt) placeInAnyOrder() bool {
	said, gaveUp := a.failures(), a.gaveUp
	defer func() {
		a.sayAgain(said)
		a.gaveUp = gaveUp
	}()
	return a.place() == nil && len(a.placed) >= a.need
}

// displaceFrom displaces the pods of one node that are less important than every member.
func (a *groupAttempt) displaceFrom(n *cluster.Node, gone *gang.RemovedPods) (units [][]*cluster.Pod) {
	for _, p := range slices.Clone(n.Pods) {
		if p.Node == nil || p.Class.Priority >= a.priority() || a.groups.Of(p.UID) == a.group {
			continue
		}
		unit := a.podGroups.units.Of(p)
		if a.keeps() && a.podGroups.units.BreakBudget(unit) {
			continue
		}
		a.effort += costOfRemoval * len(unit)
		for _, other := range unit {
			gone.Remove(other)
		}
		units = append(units, unit)
	}
	return units
}

// lowUnit tells whether a group leaves only as a whole, and its priority is below that of the
// members, whatever the priorities of its pods are.
func (a *groupAttempt) lowUnit(g *groups.Group) bool {
	return a.podGroups.gates.Preemption && g != nil && g != a.group && g.Whole() && g.Priority() < a.priority()
}

// displaceUnits displaces such groups, too, the lowest first, until that is enough: a search on
// nodes sees the priorities of their pods. If it is not ok, what it displaced stays away.
func (a *groupAttempt) displaceUnits(gone *gang.RemovedPods) (units [][]*cluster.Pod, ok bool) {
	low := slices.DeleteFunc(slices.Clone(a.groups.Sorted()), func(g *groups.Group) bool { return !a.lowUnit(g) })
	slices.SortStableFunc(low, func(x, y *groups.Group) int { return cmp.Compare(x.Priority(), y.Priority()) })
	for _, g := range low {
		if a.spent() {
			return nil, false
		}
		unit := a.podGroups.units.OnNodes(g)
		if len(unit) == 0 || a.keeps() && a.podGroups.units.BreakBudget(unit) {
			continue
		}
		for _, p := range unit {
			gone.Remove(p)
		}
		units = append(units, unit)
		if more, ok := a.displaceWithin(gone, a.shields(a.keeps())); ok {
			return append(units, more...), true
		}
	}

	return nil, false
}

// displace places members one after the other. If one fits nowhere, its victims are removed as for
// a single pod, with all pods that leave together with them. It is not ok if too few can be placed.
// What rejects a member even with its victims gone may be what it has to wait for.
func (a *groupAttempt) displace(gone *gang.RemovedPods, order []*member) (units [][]*cluster.Pod, ok bool) {
	hopeless, highest := failures{}, a.highest()
	for _, m := range order {
		if hopeless.of(m, a.cluster.Log.Len()) != nil {
			continue
		}
		if a.over() {
			a.shortened = true
			break
		}
		if placed, err := a.try(m); err != nil {
			return nil, false
		} else if placed {
			a.raise(m, highest)
			continue
		}
		a.effort += costOfPreemption
		found := a.profile.Preempt(m.asked)
		if found.Node == nil {
			if found.Err == nil {
				hopeless.add(m, a.cluster.Log.Len())
				a.noteWhy(m, found.Plugins, gone.Len() > 0)
			}
			continue
		}
		for _, victim := range found.Victims {
			if victim.Node == nil {
				continue // it left together with another one
			}
			if a.groups.Of(victim.UID) == a.group { // placed in this attempt, so that no shield protects it
				return nil, false
			}
			unit := a.podGroups.units.Of(victim)
			a.effort += costOfRemoval * len(unit)
			for _, p := range unit {
				gone.Remove(p)
			}
			units = append(units, unit)
		}
		if a.count(m, decide.Decision{Node: found.Node}) != nil {
			return nil, false
		}
		a.raise(m, highest)
	}
	return units, len(a.placed) >= a.need
}

// noteWhy notes what rejects a member for which no victims were found: as things are, that may be
// other plugins than before pods were displaced and members were placed.
func (a *groupAttempt) noteWhy(m *member, refused []string, changed bool) {
	m.rescue.rejectors = withNames(m.rescue.rejectors, refused)
	if !changed && len(a.placed) == 0 {
		return
	}
	now := a.profile.Diagnose(m.asked)
	m.rescue.rejectors = withNames(m.rescue.rejectors, now.Plugins)
	if now.Rejector != "" {
		m.rescue.rejectors = withNames(m.rescue.rejectors, []string{now.Rejector})
	}
}

// raise keeps a member that was just placed from being a victim of the next one, whose priority is
// at most the given one: if that is higher, the member counts on its node with the highest
// priority there is, until it is taken off.
func (a *groupAttempt) raise(m *member, highest int32) {
	if m.Waiting.Class.Priority >= highest {
		return
	}
	gang.ReplacePod(a.cluster, m.Waiting, m.found.Node)
}
