// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// PreemptedDevices returns the plugin if the pod may preempt other pods for devices that it needs,
// or nil.
func (p *Profile) PreemptedDevices(c *cluster.Cluster, pod *cluster.Pod) *DynamicResources {
	if d, ok := p.made["DynamicResources"].(*DynamicResources); ok && d.preempts && needsDevices(c, pod) {
		return d
	}
	return nil
}

// NeedEqualDevices reports whether two pods with claims need the same devices: the claims are
// equal, and not allocated unless shared.
func NeedEqualDevices(c *cluster.Cluster, x, y *cluster.Pod) bool {
	claims, _, rejection := claimsOf(c, x.Object())
	others, _, otherwise := claimsOf(c, y.Object())
	return rejection == nil && otherwise == nil && slices.EqualFunc(claims, others, func(a, b *resourcev1.ResourceClaim) bool {
		return a == b || a.Status.Allocation == nil && b.Status.Allocation == nil && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
	})
}

// HoldsDevices reports whether a claim of a pod is allocated.
func HoldsDevices(c *cluster.Cluster, p *cluster.Pod) bool {
	claims, _, _ := claimsOf(c, p.Object())
	return slices.ContainsFunc(claims, func(claim *resourcev1.ResourceClaim) bool { return claim.Status.Allocation != nil })
}

// KeptDevice describes a device that the pod needs, and that preemption does not release, on the
// first node that lacks only devices. It does not name users of other namespaces. It returns "" if
// it finds no such device.
func (d *DynamicResources) KeptDevice(c *cluster.Cluster, p *cluster.Pod, lacksDevices func(*cluster.Node) bool) string {
	const most = 16 // examined nodes
	a, examined := d.attemptFor(c, p), 0
	if a.err != nil || a.rejection != nil {
		return ""
	}
	for _, n := range c.Nodes {
		if n == nil || examined == most || d.index.sharedPools+len(d.index.devicesOf(n.Name).pools) == 0 || !lacksDevices(n) {
			continue
		}
		examined++
		if device, why := a.keptOn(p, n); why != "" {
			return fmt.Sprintf("Device %s on node %s %s.", device, n.Name, why)
		}
	}
	return ""
}

// keptOn returns a device that the pod needs on a node, and the reason why it stays. It supposes
// that all devices of the node are released, and then counts their claims again, first the claims
// that preemption does not release: the claim without room for the pod next to it holds the device.
func (a *attempt) keptOn(p *cluster.Pod, n *cluster.Node) (device structured.DeviceID, why string) {
	defer a.c.ReleaseClaims()() // limits the searches together
	x, open := &a.d.index, a.openAt(n)
	own, use := x.slicesFor(n.Name), newDeviceUse(x.pools)
	found := a.findBeside(a, n, open, a.shape, own, &use)
	if found.rejection != nil && found != tooHard {
		return a.keptAnyway(p, n, open)
	}

	for _, claim := range a.claimsAt(p, n) {
		use.countDevices(claim.Status.Allocation, 1)
		next := a.findBeside(a, n, open, a.shape, own, &use)
		if next.rejection == nil {
			found = next
			continue
		}
		if next == tooHard {
			break
		}
		held, chosen := idsOf(*claim.Status.Allocation), idsOf(found.results...)
		at := slices.IndexFunc(held, func(id structured.DeviceID) bool { return slices.Contains(chosen, id) })
		user, why := whyKept(a.c, p, claim)
		why = cmp.Or(why, "a preemptionPolicy, a disruption budget or its pod group protects")
		return held[max(at, 0)], heldBy(p, claim, user) + why // a part of a device may hold the other parts
	}
	return device, ""
}

// heldBy is the beginning of the reason why a claim of a user keeps a device from a pod. It does
// not name users of other namespaces.
func heldBy(p *cluster.Pod, claim *resourcev1.ResourceClaim, user resourcev1.ResourceClaimConsumerReference) string {
	kind := cmp.Or(strings.TrimSuffix(user.Resource, "s"), "claim")
	if claim.Namespace != p.Namespace() {
		return "is held by a " + kind + " of another namespace, which "
	}
	return fmt.Sprintf("is held by %s %s/%s, which ", kind, claim.Namespace, cmp.Or(user.Name, claim.Name))
}

// claimsAt lists the claims that hold devices in the pools of a node, first the claims that
// preemption by the pod does not release.
func (a *attempt) claimsAt(p *cluster.Pod, n *cluster.Node) (list []*resourcev1.ResourceClaim) {
	isKept := func(claim *resourcev1.ResourceClaim) bool {
		_, why := whyKept(a.c, p, claim)
		return why != ""
	}
	for id := range a.d.index.devicesOf(n.Name).pools {
		for name := range a.d.index.claimsIn[id] {
			if claim, ok := a.c.ResourceClaims.Get(name.Namespace, name.Name); ok {
				list = append(list, claim)
			}
		}
	}
	slices.SortFunc(list, func(x, y *resourcev1.ResourceClaim) int {
		return cmp.Or(rules.FalseFirst(!isKept(x), !isKept(y)), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return slices.Compact(list)
}

// idsOf lists the devices of allocations, except for devices with admin access.
func idsOf(allocations ...resourcev1.AllocationResult) (list []structured.DeviceID) {
	for i := range allocations {
		for _, r := range allocations[i].Devices.Results {
			if !ptr.Deref(r.AdminAccess, false) {
				list = append(list, structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
			}
		}
	}
	return list
}

// keptAnyway is keptOn for a node without enough devices of its own: the pod could use the device
// if it tolerated its taints, or if preemption included devices within reach of several nodes.
func (a *attempt) keptAnyway(p *cluster.Pod, n *cluster.Node, open []*resourcev1.ResourceClaim) (device structured.DeviceID, why string) {
	x, untainted := &a.d.index, slices.Clone(a.d.index.slicesFor(n.Name))
	if x.sharedPools > 0 {
		untainted = a.c.ResourceSlices.All()
	}
	tolerated, taints := tolerationsOf(open), map[structured.DeviceID]string{}
	for i, slice := range untainted {
		clean := *slice
		clean.Spec.Devices = slices.Clone(slice.Spec.Devices)
		for j := range clean.Spec.Devices {
			taints[deviceOf(slice, j)] = strings.Join(keptBack(&slice.Spec.Devices[j], tolerated), ", ")
			clean.Spec.Devices[j].Taints = nil
		}
		untainted[i] = &clean
	}

	free := newDeviceUse(x.pools)
	for _, id := range idsOf(a.findBeside(a, n, open, nil, untainted, &free).results...) {
		if taints[id] != "" {
			return id, "has the taint " + taints[id] + ", which the pod does not tolerate"
		}
		for _, claim := range a.c.ResourceClaims.All() {
			if claim.Status.Allocation != nil && slices.Contains(idsOf(*claim.Status.Allocation), id) {
				user, _ := whyKept(a.c, p, claim)
				return id, heldBy(p, claim, user) + "preemption spares because several nodes reach the device"
			}
		}
	}
	return device, ""
}
