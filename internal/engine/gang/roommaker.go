// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// RoomMaker plans evictions for a group that does not fit. All removals and placements are
// hypothetical, and it restores the cluster.
type RoomMaker struct {
	victimSearch
	tentative *Tentative
	placer    *Placer
	domains   *Domains

	// arranged holds the members' places at the time when victims were last found. The members may
	// fit only in this arrangement.
	arranged []Place
}

// RoomPlan is a placement of a group, and the pods to evict for it.
type RoomPlan struct {
	Places  []Place
	Victims [][]*cluster.Pod // units that leave together, the most important first
	// Waits is set if pods must leave or are leaving. Otherwise the group fits in the current
	// cluster, in an arrangement not found before.
	Waits bool
	// Beside is set if the group fits without using the room of any nominated pod.
	Beside bool

	domain string  // domain of the topology key
	full   float64 // requested percentage of the domain under the plan; see fills.withPlan
}

// cost returns the measures for comparing plans: the highest priority of a victim, then the number
// of victims.
func (p *RoomPlan) cost() *domainBound { return costOf(p.Victims) }

func costOf(units [][]*cluster.Pod) *domainBound {
	c := &domainBound{highest: leftAlready}
	for _, unit := range units {
		c.count += len(unit)
		for _, victim := range unit {
			c.highest = max(c.highest, int64(victim.Class.Priority))
		}
	}
	return c
}

// MayPreempt reports whether other pods may be evicted for the group: the profile and all members
// must allow preemption, and there must be enough members. Otherwise there is no plan.
func (r *Request) MayPreempt() bool {
	return r.Profile.GroupPreemption && len(r.Members) >= r.Need && !slices.ContainsFunc(r.Members, func(m *Member) bool {
		return m.Waiting.Class.Spec.NeverPreempts()
	})
}

// planRoom looks for a way to place the needed number of members by evicting lower-priority pods,
// in the cheapest domain of the topology key. It returns nil if evictions would not help.
func (r *RoomMaker) planRoom() *RoomPlan {
	r.bound.begin()
	if r.domains.count == 0 {
		r.bound.effort = 0
		r.Host.GeneratedPlacements(1)
		r.Host.BeginPlacement("")
		plan := r.plan()
		r.Host.EvaluatedPlacements(1, plan != nil)
		return plan
	}

	domains, err := r.domains.listDomains()
	if err != nil {
		return nil
	}
	defer r.SetFailures(r.Failures())

	r.Host.GeneratedPlacements(len(domains))
	fills, mayLeave := newFills(r.Request), r.victimRule()
	list := r.domains.listPromising(domains, mayLeave)
	r.Host.EvaluatedPlacements(len(domains)-len(list), false)
	var best []*RoomPlan // equally cheap plans
	for b := range inTurn(r.bound, list) {
		if len(best) > 0 && !r.mayImprove(best[0], b) {
			continue
		}

		r.domains.confine(b.domain)
		plan := r.plan()
		r.Host.EvaluatedPlacements(1, plan != nil)
		if plan == nil {
			continue
		}
		plan.domain = b.domain
		plan.full = fills.withPlan(plan, r.domains.nodesByDomain()[b.domain], mayLeave)
		if len(best) == 0 || plan.cost().compare(best[0].cost()) < 0 {
			best = []*RoomPlan{plan}
		} else if plan.cost().compare(best[0].cost()) == 0 {
			best = append(best, plan)
		}
	}

	return r.chooseByScore(best)
}

// mayImprove reports whether a domain may have a cheaper plan, or an equally cheap plan worth
// examining. An equally cheap plan is worth examining if out-of-tree plugins score plans, or if
// little effort was spent so far, since its domain may be fuller.
func (r *RoomMaker) mayImprove(best *RoomPlan, b *domainBound) bool {
	by := best.cost().compare(b)
	return by > 0 || by == 0 && (r.Host.ScoresPlacements() || !r.bound.isDear())
}

// chooseByScore returns the plan with the highest score; among equal scores, the plan in the first
// domain by name. It uses the score of Domains.chooseBest without the share of placed members,
// which is the same for all plans.
func (r *RoomMaker) chooseByScore(plans []*RoomPlan) *RoomPlan {
	if len(plans) < 2 {
		return append(plans, nil)[0]
	}

	placements := make([]Placement, len(plans))
	for i, p := range plans {
		placements[i] = Placement{Domain: p.domain, Nodes: r.domains.nodesByDomain()[p.domain], Places: p.Places}
	}
	// If the plugins fail, compare the plans without their scores.
	if outside, err := r.domains.scoreOutside(placements); err == nil {
		for i, p := range plans {
			p.full += outside[i]
		}
	}
	return slices.MaxFunc(plans, func(x, y *RoomPlan) int {
		return cmp.Or(cmp.Compare(x.full, y.full), cmp.Compare(y.domain, x.domain))
	})
}

// Prospect is a domain where the groups below a composite may fit.
type Prospect struct {
	Domain string
	Full   float64     // requested percentage of the domain if all members are there
	least  domainBound // lower bound of the cost
}

// MayCostLess reports whether the domain may be cheaper than evicting some units.
func (p *Prospect) MayCostLess(than [][]*cluster.Pod) bool { return costOf(than).compare(&p.least) > 0 }

// ListProspects lists the domains of the topology key where the needed number of members may fit,
// judged only by room, the fullest first. If leave is set, domains where less important pods must
// leave come first. If there is no such domain, the result is the domain with the most room, which
// serves to explain the failure.
func (a *Attempt) ListProspects(domains []string, leave bool) []Prospect {
	d, mayLeave := a.domains, leaveRule(nil)
	if leave {
		mayLeave = a.rooms.victimRule()
	}
	d.fills = newFills(a.Request)
	d.fills.sortByFullest(domains)

	promising := d.listPromising(domains, mayLeave)
	if len(promising) == 0 {
		promising = []domainBound{{domain: d.findRoomiest(domains)}}
	}
	return rules.Mapped(promising, func(b domainBound) Prospect { return Prospect{b.domain, d.fills.withAll(b.domain), b} })
}
