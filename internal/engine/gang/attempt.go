package gang

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Attempt decides the pods of a group together. It is the one type that the cycle calls: it has the
// layers do their part in order, and each call leaves the cluster as its comment says.
//
//	Place            leaves members counted on nodes, until Rewind
//	PlanRoom         } leave the cluster as it was
//	PlanReservation  }
//	Verdict          says what it came to
type Attempt struct {
	*Request
	bound     *Bound
	tentative *Tentative
	placer    *Placer
	domains   *Domains
	rooms     *RoomMaker
}

// New returns an attempt. It does nothing yet.
func New(r *Request) *Attempt {
	a := &Attempt{Request: r}
	a.bound = &Bound{limits: r.Limits, decider: r.Decider, rand: r.Rand, members: len(r.Members), earlier: r.Earlier}
	a.tentative = &Tentative{cluster: r.Cluster, host: r.Host}
	a.placer = &Placer{Request: r, bound: a.bound, tentative: a.tentative}
	a.domains = &Domains{Request: r, bound: a.bound, placer: a.placer}
	a.rooms = newRoomMaker(r, a.bound, a.tentative, a.placer, a.domains)
	return a
}

// Begin begins a part of the attempt that has the whole bound.
func (a *Attempt) Begin() { a.bound.begin() }

// Placed lists the members that count on nodes now, in the order in which they were placed.
func (a *Attempt) Placed() []*Member { return a.tentative.placed }

// HasEnough tells whether these are as many as are needed.
func (a *Attempt) HasEnough() bool { return a.placer.hasEnough() }

// Rewind takes all members off their nodes.
func (a *Attempt) Rewind() { a.tentative.Rewind(0) }

// Place looks for nodes, and leaves every member that has one counted there, also after an error.
// They may be too few.
//
// Members that are nominated keep their room from the others. As things are now, a member that has
// no node may fit where only that room is left: so where it matters, the others are tried again
// without nominations, or all are, if too few have a node.
func (a *Attempt) Place() error {
	if len(a.Members) < a.Need {
		return nil // the others are kept out by their own gates
	}

	err := a.placeAsNominated()
	switch {
	case err != nil || a.bound.shortened || len(a.Placed()) == len(a.Members) || !a.haveNominations():
		return err
	case a.HasEnough():
		return a.withoutNominations(a.placer.repeatPass)
	}
	a.Rewind()
	return a.withoutNominations(a.placeAsNominated)
}

// placeAsNominated places members where they leave those that are nominated their room.
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

// haveNominations tells whether members may keep room from each other.
func (a *Attempt) haveNominations() bool {
	return len(a.Members) > 1 && slices.ContainsFunc(a.Members, func(m *Member) bool {
		return m.Nominee != nil || a.Cluster.Nominated(m.Pod.UID) != nil
	})
}

// withoutNominations places members while those that have no node keep no room where they are
// nominated. Those that still have none are nominated again.
func (a *Attempt) withoutNominations(place func() error) error {
	nominees := map[*Member]*cluster.Pod{}
	for _, m := range a.Members {
		if p := a.Cluster.Nominated(m.Pod.UID); p != nil {
			nominees[m] = p
			a.Cluster.Unnominate(p.UID)
		}
	}

	err := place()
	for _, m := range a.Members {
		switch p := nominees[m]; {
		case p == nil:
		case m.Node != nil:
			m.Nominee = p
		default:
			a.Cluster.Nominate(p, p.Nominated)
		}
	}

	return err
}

// PlaceInClosest places as many members as one pass can, in the domain in which most of them found
// a node, and leaves them there. Why the others found none stays noted.
func (a *Attempt) PlaceInClosest() error {
	if a.InDomains() {
		a.domains.confineToClosest()
	}
	return a.placer.pass(a.Members)
}

// PlaceAs counts the members as a plan has them. It returns false, with none placed, if they are
// too few.
func (a *Attempt) PlaceAs(plan *RoomPlan) bool {
	a.tentative.PlaceAll(plan.Places)
	if !a.HasEnough() {
		a.Rewind()
		return false
	}
	return true
}

// PlaceAll counts members as they were counted before, none of which is placed now. It returns
// false if one is refused now: the others count nevertheless.
func (a *Attempt) PlaceAll(places []Place) bool {
	a.tentative.PlaceAll(places)
	return len(a.Placed()) == len(places)
}

// CurrentPlaces returns where members count now.
func (a *Attempt) CurrentPlaces() []Place { return a.tentative.listPlaces() }

// CurrentPlacement returns these places with the domain that they are in.
func (a *Attempt) CurrentPlacement() Placement {
	p := Placement{Places: a.CurrentPlaces()}
	if a.InDomains() {
		p.Domain, p.Nodes = a.domains.closest, a.domains.nodesByDomain()[a.domains.closest]
	}
	return p
}

// Look runs what places members for a look. None of them counts on a node afterwards, and why
// members found none stays noted.
func (a *Attempt) Look(look func()) {
	defer a.setFailures(a.listFailures())
	defer a.Rewind()
	look()
}

// PlanRoom looks for a way to place as many members as are needed if pods of lower priority leave.
// It returns nil if that would not help, or if no pod may leave for the group. It leaves the
// cluster as it was.
func (a *Attempt) PlanRoom() *RoomPlan {
	if !a.MayPreempt() {
		return nil
	}
	return a.rooms.planRoom()
}

// HasLower tells whether any pod on a node may leave for the group, whether or not that helps.
func (a *Attempt) HasLower() bool {
	mayLeave := a.rooms.victimRule()
	for n := range a.eachNode {
		if slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { _, leaves := mayLeave(p); return leaves }) {
			return true
		}
	}
	return false
}

// PlanReservation looks for the nodes on which the group is likely to fit soonest as pods end. It
// leaves the cluster as it was.
func (a *Attempt) PlanReservation() []Place { return a.rooms.planReservation() }

// InDomains tells whether the group is to be in one domain of a topology key.
func (a *Attempt) InDomains() bool { return a.domains.count > 0 }

// IsInClosest tells whether members may go to a node: with a topology key, it must be in the domain
// that they came closest to fit in.
func (a *Attempt) IsInClosest(n *cluster.Node) bool {
	if !a.InDomains() || n == nil {
		return true
	}
	domain, has := a.domainOf(n)
	return has && domain == a.domains.closest
}

// ListRejectorsAlone lists the plugins that keep members off nodes while none of them counts on
// one. It ends at the bound, and says nothing of members that are confined to a domain.
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

// OrderMatters tells whether members differ, so that what helps any of them may help all.
func (a *Attempt) OrderMatters() bool { return a.orderMatters() }
