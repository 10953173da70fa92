// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Attempt decides the pods of a group together. Package cycle uses the lower layers only through
// it. It runs the layers in order, and each call leaves the cluster in the documented state.
//
//	Place            leaves members counted on nodes, until Rewind
//	PlanRoom         } restore the cluster
//	PlanReservation  }
//	Verdict          returns the outcome
type Attempt struct {
	*Request
	bound     *Bound
	tentative *Tentative
	placer    *Placer
	domains   *Domains
	rooms     *RoomMaker
}

// New returns an attempt that has not begun yet.
func New(r *Request) *Attempt {
	a := &Attempt{Request: r}
	a.bound = &Bound{limits: r.Limits, decider: r.Decider, rand: r.Rand, members: len(r.Members), earlier: r.Earlier}
	a.tentative = &Tentative{cluster: r.Cluster, host: r.Host}
	a.placer = &Placer{Request: r, bound: a.bound, tentative: a.tentative}
	a.domains = &Domains{Request: r, bound: a.bound, placer: a.placer}
	a.rooms = &RoomMaker{tentative: a.tentative, placer: a.placer, domains: a.domains}
	a.rooms.victimSearch = victimSearch{Request: r, bound: a.bound, pods: a.rooms}
	return a
}

// Begin begins a part of the attempt with the whole bound.
func (a *Attempt) Begin() { a.bound.begin() }

// Placed lists the members currently counted on nodes, in the order of their placement.
func (a *Attempt) Placed() []*Member { return a.tentative.placed }

// HasEnough reports whether at least the needed number of members is placed.
func (a *Attempt) HasEnough() bool { return a.placer.hasEnough() }

// Rewind takes all members off their nodes.
func (a *Attempt) Rewind() { a.tentative.Rewind(0) }

// Place looks for nodes and leaves every member with a node counted there, even after an error.
// Fewer members than needed may be counted.
//
// Nominated members reserve their room, which may be the last room for another member. Therefore,
// if members remain without a node, they are retried without nominations. If too few members have a
// node, all members are retried in this way.
func (a *Attempt) Place() error {
	if len(a.Members) < a.Need {
		return nil // the other members are still gated; see Verdict.Reason
	}

	switch err := a.placeAsNominated(); {
	case err != nil || a.bound.shortened || len(a.Placed()) == len(a.Members) || !a.haveNominations():
		return err
	case a.HasEnough():
		return WithoutNominations(a.Cluster, a.Members, a.placer.repeatPass)
	}
	a.Rewind()
	return WithoutNominations(a.Cluster, a.Members, a.placeAsNominated)
}

// placeAsNominated places members without using the room reserved for nominated members.
func (a *Attempt) placeAsNominated() error {
	a.bound.begin()
	if a.TopologyKey != "" {
		return a.domains.placeWithin()
	}
	a.Host.GeneratedPlacements(1)
	a.Host.BeginPlacement("")
	err := a.placer.place()
	if err == nil {
		a.Host.EvaluatedPlacements(1, a.HasEnough())
	}
	return err
}

// haveNominations reports whether members may reserve room from each other.
func (a *Attempt) haveNominations() bool {
	return len(a.Members) > 1 && slices.ContainsFunc(a.Members, func(m *Member) bool {
		return m.Nominee != nil || a.Cluster.Nominated(m.Pod.UID) != nil
	})
}

// WithoutNominations places members while ignoring the nominations of members without a node. It
// restores the nominations of members that still have no node.
func WithoutNominations(c *cluster.Cluster, members []*Member, place func() error) error {
	nominees := map[*Member]*cluster.Pod{}
	for _, m := range members {
		if p := c.Nominated(m.Pod.UID); p != nil {
			nominees[m] = p
			c.Unnominate(p.UID())
		}
	}

	defer func() {
		for _, m := range members {
			switch p := nominees[m]; {
			case p == nil:
			case m.Node != nil:
				m.Nominee = p
			default:
				c.Nominate(p, p.Nominated)
			}
		}
	}()
	return place()
}

// PlaceInClosest places as many members as possible in one pass, in the domain with nodes for most
// of them, and leaves them there. The failures of the other members are kept.
func (a *Attempt) PlaceInClosest() error {
	if a.InDomains() {
		a.domains.confineToClosest()
	}
	return a.placer.pass(a.Members)
}

// PlaceAs counts the members on the nodes of a plan. If they are too few, it places no member and
// returns false.
func (a *Attempt) PlaceAs(plan *RoomPlan) bool {
	a.tentative.PlaceAll(plan.Places)
	if !a.HasEnough() {
		a.Rewind()
		return false
	}
	return true
}

// PlaceAll counts members on their previous nodes. No member may be placed before the call. If a
// member is refused, PlaceAll returns false; the other members still count.
func (a *Attempt) PlaceAll(places []Place) bool {
	a.tentative.PlaceAll(places)
	return len(a.Placed()) == len(places)
}

// CurrentPlaces returns the current places of members.
func (a *Attempt) CurrentPlaces() []Place { return a.tentative.listPlaces() }

// CurrentPlacement returns the current places of members with their domain.
func (a *Attempt) CurrentPlacement() Placement {
	p := Placement{Places: a.CurrentPlaces()}
	if a.InDomains() {
		p.Domain, p.Nodes = a.domains.closest, a.domains.nodesByDomain()[a.domains.closest]
	}
	return p
}

// Look runs look, which may place members, then takes all members off their nodes and restores
// their failures.
func (a *Attempt) Look(look func()) {
	defer a.SetFailures(a.Failures())
	defer a.Rewind()
	look()
}

// PlanRoom looks for a way to place the needed number of members by evicting lower-priority pods.
// It returns nil if evictions would not help, or if no pod may be evicted for the group. It
// restores the cluster.
func (a *Attempt) PlanRoom() *RoomPlan {
	if !a.MayPreempt() {
		return nil
	}
	return a.rooms.planRoom()
}

// HasLower reports whether any pod on a node may be evicted for the group, even if evictions would
// not help.
func (a *Attempt) HasLower() bool {
	mayLeave := a.rooms.victimRule()
	return rules.Any(a.eachNode, func(n *cluster.Node) bool {
		return slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { _, leaves := mayLeave(p); return leaves })
	})
}

// PlanReservation looks for the nodes where the group is likely to fit soonest as pods end, among
// the given nodes or all. known returns the end of a pod, or zero if it is unknown. start is the
// time when the last of the pods that must end has ended, or zero if it is unknown.
// PlanReservation restores the cluster.
func (a *Attempt) PlanReservation(among map[*cluster.Node]bool, known KnownEnd) (places []Place, start time.Time) {
	return a.rooms.planReservation(&a.rooms.victimSearch, among, known)
}

// InDomains reports whether the group must be in one domain of a topology key.
func (a *Attempt) InDomains() bool { return a.domains.count > 0 }

// ListRejectorsAlone lists the plugins that reject members on nodes while no member is placed. It
// stops at the bound, and returns nothing for members confined to a domain.
func (a *Attempt) ListRejectorsAlone() (names []string) {
	looked := map[*cluster.PodClass]bool{}
	for _, m := range a.Members {
		switch {
		case a.InDomains(), a.bound.shortened, a.bound.isOver():
			return names
		case !looked[m.Asked.Class]:
			looked[m.Asked.Class] = true
			names = WithNames(names, a.Decider.Diagnose(m.Asked).Plugins)
		}
	}
	return names
}
