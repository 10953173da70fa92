// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// This file finds devices on a node for claims in two situations: in an experiment that removes
// pods, where the claims of these pods are released, and next to guests, the nominated pods that
// take precedence. Both concern only the node's own pools of devices.

// guestsOn returns the attempts of the pods nominated to the node that need devices and take
// precedence over p: those of a higher priority, and those of its priority unless p was nominated
// to the node before them (for members of a group, all). Their devices must stay available until
// they are placed.
func (d *DynamicResources) guestsOn(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (guests []*attempt) {
	if !d.preempts {
		return nil
	}
	later := false // than p, which is nominated to the node as well
	for _, g := range n.Nominated {
		later = later || g.UID() == p.UID() && p.Object().Spec.SchedulingGroup == nil
		first := g.Class.Priority > p.Class.Priority || g.Class.Priority == p.Class.Priority && !later
		if g.UID() == p.UID() || !first || !needsDevices(c, g) {
			continue
		}
		if a := d.guestOf(c, g); a.err == nil && a.rejection == nil {
			guests = append(guests, a)
		}
	}
	return guests
}

// guestOf returns the attempt of a nominated pod. Nodes are judged concurrently.
func (d *DynamicResources) guestOf(c *cluster.Cluster, g *cluster.Pod) *attempt {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	a, of := d.guests[g.UID()], keyOf(c, g)
	if a != nil && a.key == of {
		return a
	}
	if d.guests == nil || len(d.guests) > 2*c.Nominations() {
		d.guests = map[types.UID]*attempt{}
	}
	a = d.newAttempt(c, g, of)
	a.guest, d.guests[g.UID()] = true, a
	return a
}

// findWithGuests finds devices for the open claims of a pod. Devices chosen for the guests are not
// available; guests may count on the devices of pods that are being preempted.
func (a *attempt) findWithGuests(n *cluster.Node, open []*resourcev1.ResourceClaim, shape *deviceShape, guests []*attempt) *claimAllocations {
	x := &a.d.index
	if len(guests) == 0 {
		found := a.findAllocations(n, open, shape)
		if found.rejection == nil || !found.rejection.Held || !a.c.ReleasesClaims() {
			return found
		}
	}
	own := x.slicesFor(n.Name)
	if x.sharedPools > 0 && !a.c.ReleasesClaims() {
		own, shape = a.c.ResourceSlices.All(), nil
	}

	now := a.useOf(own, func(claim *resourcev1.ResourceClaim) bool {
		return a.c.ReleasesClaims() && a.isReleased(claim, n, false)
	})
	if len(guests) == 0 {
		return a.findBeside(a, n, open, shape, own, now)
	}
	soon := a.useOf(own, func(claim *resourcev1.ResourceClaim) bool { return a.isReleased(claim, n, true) })
	for _, g := range guests {
		wanted := slices.DeleteFunc(slices.Clone(g.openAt(n)), func(claim *resourcev1.ResourceClaim) bool { return slices.Contains(open, claim) })
		if len(wanted) == 0 {
			continue
		}
		results := a.findBeside(g, n, wanted, nil, own, soon).results
		for i := range results {
			soon.countDevices(&results[i], 1)
			now.countDevices(&results[i], 1)
		}
	}
	return a.findBeside(a, n, open, shape, own, now)
}

// isPromised reports whether guests count on the devices of one of the pod's allocated claims. All
// users of the claim are being preempted, so another user would keep the devices.
func (a *attempt) isPromised(n *cluster.Node, guests []*attempt) bool {
	return slices.ContainsFunc(guests, func(g *attempt) bool { return len(g.openAt(n)) > 0 }) &&
		slices.ContainsFunc(a.claims, func(claim *resourcev1.ResourceClaim) bool { return a.isReleased(claim, n, true) })
}

// openAt returns the claims to be allocated on a node.
func (a *attempt) openAt(n *cluster.Node) []*resourcev1.ResourceClaim {
	if a.extended == nil {
		return a.open
	}
	return a.extendedAt(n).open
}

// isReleased reports whether the claim's devices are released in the current experiment, or are
// released soon, after the end of all pods being preempted. A claim of a pod group stays.
func (a *attempt) isReleased(claim *resourcev1.ResourceClaim, n *cluster.Node, soon bool) bool {
	for i := range claim.Status.ReservedFor {
		holder := &claim.Status.ReservedFor[i]
		p := a.c.Pod(holder.UID)
		switch {
		case holder.APIGroup != "" || holder.Resource != "pods":
			return false
		case p == nil: // removed, unless it has no node yet
			if holder.UID == a.pod.UID || a.c.Nominated(holder.UID) != nil || a.c.IsPending != nil && a.c.IsPending(holder.UID) {
				return false
			}
		case p.Node == nil || p.Node.Index != n.Index, slices.Contains(n.Pods, p) && !(soon && p.Preempted):
			return false
		}
	}
	return len(claim.Status.ReservedFor) > 0
}

// isReleasing reports whether the claims of pods that have left the node still hold its devices.
func (a *attempt) isReleasing(n *cluster.Node) bool {
	x := &a.d.index
	for id := range x.devicesOf(n.Name).pools {
		for name, holder := range x.claimsIn[id] {
			if holder != nil && holder.Node != nil && holder.Node.Index == n.Index {
				continue
			}
			claim, ok := a.c.ResourceClaims.Get(name.Namespace, name.Name)
			if !ok || a.isReleased(claim, n, false) {
				return ok
			}
			for i := range claim.Status.ReservedFor {
				if p := a.c.Pod(claim.Status.ReservedFor[i].UID); p != nil {
					x.claimsIn[id][name] = p // avoids the lookup in later calls
				}
			}
		}
	}
	return false
}

// useOf counts the devices in the pools of slices held by claims, except for released claims.
func (a *attempt) useOf(own []*resourcev1.ResourceSlice, isReleased func(*resourcev1.ResourceClaim) bool) *deviceUse {
	x := &a.d.index
	use, counted := newDeviceUse(x.pools), map[cluster.Name]bool{}
	for _, slice := range own {
		for name := range x.claimsIn[poolOf(slice)] {
			if counted[name] {
				continue
			}
			counted[name] = true
			if claim, ok := a.c.ResourceClaims.Get(name.Namespace, name.Name); ok && !isReleased(claim) {
				use.countDevices(x.held[name], 1)
			}
		}
	}
	return &use
}

// searchesNextToGuests is the number of searches on nodes with guests that may spend the limit of
// an attempt. Their limit is separate from the limit of all other nodes.
const searchesNextToGuests = 10

// findBeside finds devices of the given slices for claims of a pod (the pod itself, or a guest),
// next to the devices in use.
func (a *attempt) findBeside(of *attempt, n *cluster.Node, open []*resourcev1.ResourceClaim, shape *deviceShape,
	own []*resourcev1.ResourceSlice, use *deviceUse) *claimAllocations {
	var like likeness
	content := a.d.index.withContent(n.Name).content
	if alike := shape != nil && content.content != nil; alike {
		like = likeness{content.content, string(use.takenOf(content))}
		if known := shape.allocationsLike(n, like, content.pools); known != nil {
			return known
		}
	} else {
		shape = nil
	}

	search := &attempt{d: a.d, c: a.c, pod: of.pod, expressions: of.expressions}
	// Outside experiments, nodes are judged concurrently: the use of a common limit would depend on
	// their order.
	search.limit.most = a.limit.most / searchesNextToGuests
	if a.c.ReleasesClaims() {
		search.limit.most = a.limit.most - a.whatIf
	}
	begin, _ := costOfSearching(open, 0)
	if search.limit.most <= 0 || search.limit.spendCost(begin) {
		return tooHard
	}
	on, err := search.newGrounds(own, 1, use.taken)
	if err != nil {
		return tooHard
	}
	found, final := search.searchOn(on, n, open)
	if a.c.ReleasesClaims() {
		a.whatIf += search.limit.spent.Load()
	}
	switch {
	case !final || found.rejection != nil && found.rejection.Err != nil:
		return tooHard
	case shape != nil && !found.ofAttempt():
		shape.keepExample(like, content.pools, found)
	}
	return found
}
