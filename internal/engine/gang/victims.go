// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// RoomMaker implements podSet for the members of a group.

func (r *RoomMaker) fit() bool          { return r.placer.passFits() }
func (r *RoomMaker) fitAnyhow() bool    { return r.placer.placeAnyhow() }
func (r *RoomMaker) rewind()            { r.tentative.Rewind(0) }
func (r *RoomMaker) placers() []*Placer { return []*Placer{r.placer} }
func (r *RoomMaker) differ() bool       { return r.OrderMatters() }

// fewestToEnd assumes that each ended pod makes room for at most one member.
func (r *RoomMaker) fewestToEnd(int) int { return r.Need - len(r.tentative.placed) }

// find finds victims, and records the places of members after the victims have left.
func (r *RoomMaker) find(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	units, ok = r.findInSomeOrder(gone)
	r.arranged = r.tentative.listPlaces()
	r.tentative.Rewind(0)
	return units, ok
}

// refit places the members in the best nodes found, or else in the places recorded by find, because
// they may fit only in this arrangement.
func (r *RoomMaker) refit() bool {
	if r.placer.placeAnyhow() {
		return true
	}
	r.tentative.Rewind(0)
	r.tentative.PlaceAll(r.arranged)
	return r.placer.hasEnough()
}

func (r *RoomMaker) placeAgain() bool {
	were := r.tentative.listPlaces()
	if r.tentative.Rewind(0); r.placer.placeAnyhow() {
		return true
	}
	r.tentative.Rewind(0)
	r.tentative.PlaceAll(were)
	return false
}

// findInSomeOrder finds victims for the members in their order and, if this fails and the members
// differ, in other orders. Finally it searches for a placement without any lower-priority pods.
// Upstream does this first, although it removes more pods than necessary.
func (r *RoomMaker) findInSomeOrder(gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	before := gone.Len()
	if units, ok = r.findOneByOne(gone, r.Members); ok || !r.OrderMatters() {
		return units, ok
	}

	for _, order := range []func() []*Member{r.placer.orderBySize, r.placer.orderByFailure} {
		if len(r.tentative.placed) == 0 && !r.placer.declined {
			break // if no member fits alone, no order helps
		}
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
	return r.removeAllLower(gone, r.isWithin)
}

// isWithin reports whether the pods on a node may keep members off the domain of the current
// confinement. Pods in other domains may do so only by volumes, and by filters that read other
// nodes.
func (r *RoomMaker) isWithin(n *cluster.Node) bool {
	in, _ := r.domainOf(n)
	rejected := slices.ContainsFunc(r.Members, func(m *Member) bool { return len(m.Rejectors) > 0 })
	return !rejected || slices.ContainsFunc(r.Members, func(m *Member) bool {
		domain, confined := m.Asked.Class.Spec.NodeSelector[r.TopologyKey]
		return in == domain || !confined || dependsOnOthers(m) || len(m.Asked.Class.Spec.Volumes) > 0 || r.Profile.ReadsOthers(m.Rejectors)
	})
}

// findOneByOne places members in turn. If a member fits nowhere, its victims are determined as for
// a single pod, and removed with all pods that leave together with them. ok is false if too few
// members can be placed.
func (r *RoomMaker) findOneByOne(gone *RemovedPods, order []*Member) (units [][]*cluster.Pod, ok bool) {
	hopeless, highest := failures{c: r.Cluster}, r.highestPriority()
	for _, m := range order {
		if hopeless.find(m) != nil {
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
				hopeless.note(m)
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

// removeVictims removes the units of a member's victims. ok is false if a victim is in the tree of
// the group: it was placed in this attempt and is therefore not protected.
func (r *RoomMaker) removeVictims(victims []*cluster.Pod, gone *RemovedPods) (units [][]*cluster.Pod, ok bool) {
	for _, victim := range victims {
		if victim.Node == nil {
			continue // it left together with another victim
		}
		if r.Units.Groups.GroupOf(victim.UID()).SharesTree(r.Group) {
			return nil, false
		}
		unit := r.Units.UnitOf(victim)
		r.bound.addEffort(costOfRemoval * len(unit))
		gone.Remove(unit...)
		units = append(units, unit)
	}
	return units, true
}

// noteRejectors records the plugins that reject a member even without the victims, since the member
// may need to wait for their events. If the cluster is hypothetically changed, it also records the
// plugins that reject the member in the changed cluster.
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
