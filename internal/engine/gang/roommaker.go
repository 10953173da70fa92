package gang

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// RoomMaker plans which pods have to leave so that a group that does not fit can be placed. It
// leaves the cluster as it was: what it removes and places is hypothetical.
type RoomMaker struct {
	*Request
	bound     *Bound
	tentative *Tentative
	placer    *Placer
	domains   *Domains

	// arranged is where members were when victims were found for them last. They may fit only so.
	arranged []Place
}

// RoomPlan is a placement of a group, and the pods that would have to leave for it.
type RoomPlan struct {
	Places  []Place
	Victims [][]*cluster.Pod // units that leave together, the most important first
	// Waits: pods have to leave, or are leaving already. Else the group fits as things are, in
	// another way than was found before.
	Waits bool
	// Beside: there is room for the group beside all pods that are nominated.
	Beside bool

	domain string // of the topology key
}

// cost returns what plans are compared by: the highest priority of a victim, then how many there
// are.
func (p *RoomPlan) cost() *domainBound {
	c := &domainBound{highest: leftAlready}
	for _, unit := range p.Victims {
		c.count += len(unit)
		for _, victim := range unit {
			c.highest = max(c.highest, int64(victim.Class.Priority))
		}
	}
	return c
}

// MayPreempt tells whether other pods may leave for the group: the profile preempts, and so do all
// members. Otherwise no room is planned.
func (r *Request) MayPreempt() bool {
	return r.Profile.GroupPreemption && len(r.Members) >= r.Need && !slices.ContainsFunc(r.Members, func(m *Member) bool {
		policy := m.Waiting.Class.Spec.PreemptionPolicy
		return policy != nil && *policy == v1.PreemptNever
	})
}

// planRoom looks for a way to place as many members as are needed if pods of lower priority leave:
// in the domain of the topology key where that costs least. It returns nil if that would not help.
func (r *RoomMaker) planRoom() *RoomPlan {
	r.bound.begin()
	if r.domains.count == 0 {
		r.bound.effort = 0
		r.Host.GeneratedPlacements(1)
		r.Host.BeginPlacement("")
		plan := r.planHere()
		r.Host.EvaluatedPlacements(1, plan != nil)
		return plan
	}

	domains, err := r.domains.listDomains()
	if err != nil {
		return nil
	}
	defer r.setFailures(r.listFailures())

	r.Host.GeneratedPlacements(len(domains))
	list := r.domains.listPromising(domains, r.victimRule())
	r.Host.EvaluatedPlacements(len(domains)-len(list), false)
	var best []*RoomPlan // equally good ones; only the first counts where no plugin scores them
	for b := range inTurn(r.bound, list) {
		if len(best) > 0 && !r.mayImprove(best[0], b) {
			continue
		}

		r.domains.confine(b.domain)
		plan := r.planHere()
		r.Host.EvaluatedPlacements(1, plan != nil)
		if plan == nil {
			continue
		}
		plan.domain = b.domain
		if len(best) == 0 || plan.cost().compare(best[0].cost()) < 0 {
			best = []*RoomPlan{plan}
		} else if plan.cost().compare(best[0].cost()) == 0 {
			best = append(best, plan)
		}
	}

	return r.chooseByScore(best)
}

// mayImprove tells whether a domain may have a cheaper plan, or an equally cheap one that
// out-of-tree plugins score higher.
func (r *RoomMaker) mayImprove(best *RoomPlan, b *domainBound) bool {
	by := best.cost().compare(b)
	return by > 0 || by == 0 && r.Host.ScoresPlacements()
}

// chooseByScore returns the plan whose placement out-of-tree plugins score highest, of equal ones
// the first.
func (r *RoomMaker) chooseByScore(plans []*RoomPlan) *RoomPlan {
	if len(plans) < 2 {
		return append(plans, nil)[0]
	}

	placements := make([]Placement, len(plans))
	for i, p := range plans {
		placements[i] = Placement{Domain: p.domain, Nodes: r.domains.nodesByDomain()[p.domain], Places: p.Places}
	}
	scores, err := r.domains.scoreOutside(placements)
	if err != nil {
		return plans[0] // the placements are equally good to Berth
	}
	return plans[slices.Index(scores, slices.Max(scores))]
}

// victimRule is which pods may leave for the group. Those that leave already cost nothing.
func (r *RoomMaker) victimRule() leaveRule {
	highest := r.highestPriority()
	return func(p *cluster.Pod) (priority int64, leaves bool) {
		if p.Preempted {
			return leftAlready, true
		}
		return int64(p.Class.Priority), p.Class.Priority < highest || r.isLowUnit(r.Units.Groups.Of(p.UID))
	}
}

// planHere plans for the members as they are confined now.
func (r *RoomMaker) planHere() *RoomPlan {
	gone := Without(r.Cluster)
	defer gone.RestoreAfter(0)
	r.removeLeaving(gone)
	defer r.tentative.Rewind(0)

	if r.Profile.GentlePreemption {
		if p := r.planBeside(gone); p != nil || r.isDelayed() {
			return p
		}
	}
	if r.placer.passFits() || gone.Len() > 0 && r.orderMatters() && r.placer.placeAnyhow() {
		return r.describePlan(nil, gone.Len() > 0)
	}
	r.tentative.Rewind(0)

	victims, ok := r.findVictims(gone)
	if !ok {
		return nil
	}
	if !r.placer.placeAnyhow() {
		r.tentative.Rewind(0)
		r.tentative.PlaceAll(r.arranged)
		if !r.placer.hasEnough() {
			return nil
		}
	}

	victims = r.reprieveVictims(victims, gone)
	if r.keepsBudgets() && r.Units.BreakBudget(slices.Concat(victims...)) {
		return nil
	}
	return r.describePlan(victims, len(victims)+gone.Len() > 0)
}

// removeLeaving removes pods that were preempted before and are leaving: if that is enough, no
// other pod has to leave.
func (r *RoomMaker) removeLeaving(gone *RemovedPods) {
	highest := r.highestPriority()
	for _, p := range r.Host.Leaving() {
		if r.Profile.GentlePreemption || p.Class.Priority < highest || r.isLowUnit(r.Units.Groups.Of(p.UID)) {
			gone.Remove(p)
		}
	}
}

// planBeside plans without victims, and beside all pods that are nominated to nodes.
func (r *RoomMaker) planBeside(gone *RemovedPods) *RoomPlan {
	defer ProtectNominations(r.Cluster, r.LowestPriority())()
	defer r.tentative.Rewind(0)
	if gone.Len() == 0 || !r.placer.passFits() {
		return nil
	}
	p := r.describePlan(nil, true)
	p.Beside = true
	return p
}

// describePlan returns the placement that is counted now, with the units that leave for it.
func (r *RoomMaker) describePlan(victims [][]*cluster.Pod, waits bool) *RoomPlan {
	p := &RoomPlan{Victims: victims, Waits: waits, Places: make([]Place, 0, len(r.tentative.placed))}
	for _, m := range r.tentative.placed {
		p.Places = append(p.Places, Place{m, decide.Decision{Node: m.Node}})
	}
	return p
}

// reprieveVictims puts units back that need not leave, as long as the effort lasts, and returns the
// others.
func (r *RoomMaker) reprieveVictims(units [][]*cluster.Pod, gone *RemovedPods) (leave [][]*cluster.Pod) {
	r.sortForReprieve(units)
	defer r.bound.extendPart()() // it need not come to its end
	together := r.leastTogether()
	for _, unit := range units {
		if r.bound.isSpentTwice() || !r.reprieve(unit, gone, together) {
			leave = append(leave, unit)
		}
	}
	return leave
}

// sortForReprieve orders units by which should be put back first: those whose leaving breaks a
// budget, then the more important ones.
func (r *RoomMaker) sortForReprieve(units [][]*cluster.Pod) {
	breaks := map[*cluster.Pod]bool{}
	for _, unit := range units {
		breaks[unit[0]] = r.Units.BreakBudget(unit)
	}
	slices.SortStableFunc(units, func(x, y []*cluster.Pod) int {
		if breaks[x[0]] != breaks[y[0]] {
			if breaks[x[0]] {
				return -1
			}
			return 1
		}
		return compareImportance(x[0], y[0])
	})
}

// reprieve puts a unit back if enough members can be placed nevertheless. Otherwise it leaves all
// as it was. First only the members on its nodes move; if that is not enough, and the members
// differ, all are placed anew, in any order, unless what they request together is not free.
func (r *RoomMaker) reprieve(unit []*cluster.Pod, gone *RemovedPods, together amounts) bool {
	var nodes []*cluster.Node
	for _, p := range unit {
		nodes = append(nodes, gone.NodeOf(p))
	}
	were := r.tentative.removeFrom(nodes)
	stay := len(r.tentative.placed)
	gone.Restore(unit)
	r.bound.addEffort(costOfRemoval * len(unit))

	if r.placer.passFits() {
		return true
	}
	if r.tentative.Rewind(stay); r.orderMatters() && !r.bound.isSpent() && r.isFree(together) {
		were = append(were, r.tentative.listPlaces()...)
		if r.tentative.Rewind(0); r.placer.placeAnyhow() {
			return true
		}
		r.tentative.Rewind(0)
	}

	gone.Remove(unit...)
	r.tentative.PlaceAll(were)
	return false
}

// isFree tells whether all nodes together have so much CPU and memory free, or taken by members.
func (r *RoomMaker) isFree(wanted amounts) bool {
	if r.roomFilter() == nil {
		return true
	}

	var free amounts
	for i := range r.Cluster.Rooms {
		room := &r.Cluster.Rooms[i]
		free = free.plus(amounts{cpu: max(0, room.CPU-room.RequestedCPU), memory: max(0, room.Memory-room.RequestedMemory)})
	}
	for _, m := range r.tentative.placed {
		free = free.plus(requestOf(m.Waiting.Class, ""))
	}
	return free.cpu >= wanted.cpu && free.memory >= wanted.memory
}
