package cycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// roomPlan is a placement of a group, and the pods that would have to leave for it.
type roomPlan struct {
	places  []place
	victims [][]*cluster.Pod // units that leave together, the most important first
	waits   bool             // pods have to leave, or are leaving already
	beside  bool             // there is room for the group beside all pods that are nominated
}

// cost returns what plans are compared by: the highest priority of a victim, then how many there
// are.
func (p *roomPlan) cost() *domainBound {
	c := &domainBound{highest: leftAlready}
	for _, unit := range p.victims {
		c.count += len(unit)
		for _, victim := range unit {
			c.highest = max(c.highest, int64(victim.Class.Priority))
		}
	}
	return c
}

// planRoom looks for a way to place as many members as are needed if pods of lower priority leave:
// in the domain of the topology key where that costs least. It returns nil if that would not help.
// It leaves the cluster as it was.
func (a *groupAttempt) planRoom() *roomPlan {
	if !a.profile.Preemption || len(a.members) < a.need {
		return nil
	}
	for _, m := range a.members {
		if policy := m.item.Class.Spec.PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
			return nil
		}
	}

	a.preemptions.forgetCounted()
	a.begin()
	key := a.group.TopologyKey()
	if a.domains == 0 {
		a.effort = 0
		return a.planHere()
	}

	domains, err := a.domainsOf(key)
	if err != nil {
		return nil
	}

	highest := a.highest()
	list := a.promising(key, domains, func(p *cluster.Pod) (priority int64, leaves bool) {
		if p.Preempted {
			return leftAlready, true
		}
		return int64(p.Class.Priority), p.Class.Priority < highest || a.lowUnit(a.groups.Of(p.UID))
	})

	defer a.sayAgain(a.failures())
	var best *roomPlan
	for b := range a.inTurn(list) {
		if best != nil && best.cost().compare(b) <= 0 {
			continue
		}
		a.confine(key, b.domain)
		if plan := a.planHere(); plan != nil && (best == nil || plan.cost().compare(best.cost()) < 0) {
			best = plan
		}
	}

	return best
}

// planHere plans for the members as they are confined now. Pods that were preempted before and are
// leaving count as gone: if that is enough, no other pod has to leave.
func (a *groupAttempt) planHere() *roomPlan {
	gone := gang.Without(a.cluster)
	defer gone.RestoreAfter(0)
	gentle, highest := a.profile.GentlePreemption, a.highest()
	for _, p := range a.preemptions.onTheirWay() {
		if gentle || p.Class.Priority < highest || a.lowUnit(a.groups.Of(p.UID)) {
			gone.Remove(p)
		}
	}
	defer a.undo(0)
	if gentle {
		if p := a.planBeside(gone); p != nil || a.delayed() {
			return p
		}
	}
	if a.fitsWithout() || gone.Len() > 0 && a.differ() && a.placeInAnyOrder() {
		p := a.plan(nil)
		p.waits = gone.Len() > 0
		return p
	}
	a.undo(0)
	stand := a.shields(true)
	shielded := stand.Len()
	units, ok := a.displaceWithin(gone, stand)
	if !ok && shielded > 0 && !a.keeps() {
		if stand = a.shields(false); stand.Len() < shielded {
			units, ok = a.displaceWithin(gone, stand)
		}
		stand.Release()
	}
	if !ok {
		units, ok = a.displaceUnits(gone)
	}
	if !ok {
		return nil
	}
	if !a.placeInAnyOrder() { // they may fit only as the victims were found
		a.undo(0)
		for _, p := range a.arranged {
			_ = a.count(p.member, p.found)
		}
		if len(a.placed) < a.need {
			return nil
		}
	}
	a.spareFirst(units)
	until := a.until
	a.until = max(until, a.profile.Work()+a.bound()/2) // sparing need not come to its end
	var leave [][]*cluster.Pod
	together := a.leastTogether()
	for _, unit := range units {
		if a.effort > 2*a.mostEffort() || a.over() || !a.spare(unit, gone, together) {
			leave = append(leave, unit)
		}
	}
	a.until = until
	if a.keeps() && a.podGroups.units.BreakBudget(slices.Concat(leave...)) {
		return nil
	}
	p := a.plan(leave)
	p.waits = len(leave)+gone.Len() > 0
	return p
}

// spare puts a unit back if enough members can be placed nevertheless. Otherwise it leaves all as
// it was. First only the members on its nodes move; if that is not enough, and the members differ,
// all are placed anew, in any order, unless what they request together is not free. together is
// leastTogether.
func (a *groupAttempt) spare(unit []*cluster.Pod, gone *gang.RemovedPods, together amounts) bool {
	var were []place
	var nodes []*cluster.Node
	for _, p := range unit {
		nodes = append(nodes, gone.NodeOf(p))
	}
	there := func(m *member) bool { return slices.Contains(nodes, m.found.Node) }
	for _, m := range slices.Backward(a.placed) {
		if there(m) {
			were = append(were, place{m, m.found})
			a.takeOff(m)
		}
	}
	a.placed = slices.DeleteFunc(a.placed, there)
	stay := len(a.placed)
	gone.Restore(unit)
	a.effort += costOfRemoval * len(unit)
	if a.fitsWithout() {
		return true
	}
	if a.undo(stay); a.differ() && !a.spent() && a.isFree(together) {
		for _, m := range a.placed {
			were = append(were, place{m, m.found})
		}
		if a.undo(0); a.placeInAnyOrder() {
			return true
		}
		a.undo(0)
	}
	for _, p := range unit {
		gone.Remove(p)
	}
	for _, p := range were {
		_ = a.count(p.member, p.found) // as it was counted before
	}
	return false
}

// planBeside plans without victims, and beside all pods that are nominated to nodes.
func (a *groupAttempt) planBeside(gone *gang.RemovedPods) *roomPlan {
	defer gang.ProtectNominations(a.cluster, a.priority())()
	defer a.undo(0)
	if gone.Len() == 0 || !a.fitsWithout() {
		return nil
	}
	p := a.plan(nil)
	p.waits, p.beside = true, true
	return p
}

// priority is the lowest priority of the members: victims must be below all of them.
func (a *groupAttempt) priority() int32 {
	lowest := a.members[0].asked.Class.Priority
	for _, m := range a.members {
		lowest = min(lowest, m.asked.Class.Priority)
	}
	return lowest
}

// highest is the highest priority of the members.
func (a *groupAttempt) highest() int32 {
	highest := a.members[0].asked.Class.Priority
	for _, m := range a.members {
		highest = max(highest, m.asked.Class.Priority)
	}
	return highest
}

func (a *groupAttempt) shields(budgets bool) *gang.ProtectedPods {
	by := gang.Preemptor{Group: a.group, Lowest: a.priority(), Highest: a.highest(), Gentle: a.profile.GentlePreemption}
	return a.podGroups.units.Protect(by, budgets)
}

func (a *groupAttempt) fitsWithout() bool {
	return a.pass(a.members, false) == nil && len(a.placed) >= a.need
}

// keeps tells whether the profile promises that no budget is broken for the group.
func (a *groupAttempt) keeps() bool {
	return a.profile.KeepBudgets && a.priority() < rules.SystemCritical
}

// spareFirst orders units by which should be spared first: those whose leaving breaks a budget,
// then the more important ones.
func (a *groupAttempt) spareFirst(units [][]*cluster.Pod) {
	breaks := map[*cluster.Pod]bool{}
	for _, unit := range units {
		breaks[unit[0]] = a.podGroups.units.BreakBudget(unit)
	}
	slices.SortStableFunc(units, func(x, y []*cluster.Pod) int {
		if breaks[x[0]] != breaks[y[0]] {
			if breaks[x[0]] {
				return -1
			}
			return 1
		}
		return gang.CompareImportance(x[0], y[0])
	})
}

// plan returns the placement that is counted now, with the units that leave for it.
func (a *groupAttempt) plan(leave [][]*cluster.Pod) *roomPlan {
	p := &roomPlan{victims: leave, waits: true}
	for _, m := range a.placed {
		p.places = append(p.places, place{m, decide.Decision{Node: a.cluster.Node(m.Node)}})
	}
	return p
}
