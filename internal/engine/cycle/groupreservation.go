// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// reserveRoom returns the room held for members of a group or tree that fits nowhere, if any.
func (t *treeAttempt) reserveRoom() (none Reservation) {
	bounds := t.leaves[0].profile.Reservations
	if len(t.members()) < t.countNeeded(t.whole) {
		t.reserved.passTurn(t.uid)
		return none
	}
	if !t.reserved.isDue(t.uid, bounds) {
		t.reserved.endFor(t.uid, false)
		return none
	}
	next := Reservation{Group: t.uid, Since: t.now, Until: t.now.Add(bounds.For)}
	held := t.reserved.heldFor(t.uid)
	if held != nil {
		next = *held
		if t.isHeldEnough(held) {
			_, next.Expected = t.planStart(t.nominatedNodes(), next.Until)
			return t.reserved.hold(next)
		}
	}

	places, start := t.planStart(nil, next.Until)
	next.Nodes, next.Requests, next.Expected = nodesByPod(places), requestsOf(places), start
	others := slices.DeleteFunc(slices.Clone(t.reserved.held), func(r *Reservation) bool { return r == held })
	fits := len(places) > 0 && t.shareOf(&next) <= bounds.Share
	t.reserved.passTurn(t.uid)
	if fits && t.shareOf(append(others, &next)...) > bounds.Share {
		t.reserved.next = t.uid
		fits = false
	}
	if !fits {
		t.reserved.endFor(t.uid, false)
		return none
	}
	return t.reserved.hold(next)
}

// planStart looks for nodes, among the given nodes or all, where the group or tree is likely to fit
// soonest as pods end. start is the time, on the clock of API objects, by which it is expected to
// start; zero if it is unknown or after until, unless that is zero. The nominations of the members
// are ignored.
func (t *treeAttempt) planStart(among map[*cluster.Node]bool, until time.Time) (places []gang.Place, start time.Time) {
	if among != nil && len(t.reserved.lives) == 0 {
		return nil, start
	}
	latest := until.Add(t.reserved.ahead - startMargin)
	_ = gang.WithoutNominations(t.cluster, t.requestFor(t.leaves).Members, func() error {
		places, start = t.planReservation(among, func(p *cluster.Pod) time.Time {
			end := t.reserved.knownEnd(p)
			if !until.IsZero() && end.After(latest) {
				return time.Time{}
			}
			return end
		})
		return nil
	})
	if !start.IsZero() {
		start = start.Truncate(time.Minute).Add(startMargin)
	}
	return places, start
}

// planReservation calls gang for the group or tree. It leaves the state of a tree unchanged.
func (t *treeAttempt) planReservation(among map[*cluster.Node]bool, known gang.KnownEnd) ([]gang.Place, time.Time) {
	if t.root == nil {
		return t.leaves[0].attempt.PlanReservation(among, known)
	}
	defer t.remember()()
	t.beginPart()
	all := t.asOne()
	all.TopologyKey = t.root.TopologyKey()
	return all.PlanTreeReservation(treeRoom{t}, among, known)
}

// nominatedNodes returns the nodes to which members are nominated.
func (t *treeAttempt) nominatedNodes() map[*cluster.Node]bool {
	nodes := map[*cluster.Node]bool{}
	for _, m := range t.members() {
		if p := t.cluster.Nominated(m.Pod.UID); p != nil {
			nodes[t.cluster.Node(p.Nominated)] = true
		}
	}
	return nodes
}

// suspendNominations withdraws the nominations of members with held room while the group is
// decided, so that members do not block each other's room.
func (a *groupAttempt) suspendNominations() {
	if r := a.reserved.heldFor(a.group.Object.UID); r != nil {
		a.suspended = a.reserved.lift(r)
	}
}

// resumeNominations undoes suspendNominations.
func (a *groupAttempt) resumeNominations() {
	a.reserved.putBack(a.suspended)
	a.suspended = nil
}

// releaseRoom ends the reservation of a placed group or tree. Its unused room may help other pods.
func (t *treeAttempt) releaseRoom() {
	t.reserved.endFor(t.uid, true)
	delete(t.groups.Since, t.uid)
	for _, p := range t.leaves[0].suspended {
		if placed := t.cluster.Pod(p.UID()); placed == nil || placed.NodeName != p.Nominated {
			t.events.podRemoved(p, t.cluster.Node(p.Nominated), nil)
		}
	}
}

// isHeldEnough reports whether enough members have held room on nodes that still exist. A tree
// needs all of it, because it may have started, and its other groups are not required then.
func (t *treeAttempt) isHeldEnough(r *Reservation) bool {
	held, count := map[*groups.Group]int{}, 0
	for _, m := range t.members() {
		if t.cluster.Node(r.Nodes[m.Pod.UID]) != nil {
			held[t.groups.GroupOf(m.Pod.UID)]++
			count++
		}
	}
	return count > 0 && (t.root == nil || count == len(r.Nodes)) && t.podGroups.progress.hasEnough(t.whole, func(g *groups.Group) int {
		return t.podGroups.progress.countPlaced(g) + held[g]
	})
}

// requestsOf returns the requests of pods, with the devices of claims.
func requestsOf(places []gang.Place) (sum cluster.Resources) {
	for _, p := range places {
		sum.Add(&p.Waiting.Class.Requests)
		for _, device := range p.Devices {
			if !ptr.Deref(device.AdminAccess, false) {
				addDevices(&sum, device.Driver, 1)
			}
		}
	}
	return sum
}

func addDevices(to *cluster.Resources, driver string, count int) {
	to.Add(&cluster.Resources{Scalars: map[v1.ResourceName]int64{v1.ResourceName(driver): int64(count)}})
}

// shareOf returns the share of the cluster that reservations request together: the largest share of
// a resource.
func (t *treeAttempt) shareOf(list ...*Reservation) float64 {
	var requested, all cluster.Resources
	for _, r := range list {
		requested.Add(&r.Requests)
	}
	for _, n := range t.cluster.Nodes {
		if n != nil {
			all.Add(&n.Size.Resources)
		}
	}
	for slice := range t.cluster.ResourceSlices.Each {
		addDevices(&all, slice.Spec.Driver, len(slice.Spec.Devices))
	}
	return gang.LargestShare(&requested, &all)
}
