// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// followClaims recounts the changed claims, or all claims, known and new, if the table has dropped
// the list of changes.
func (x *deviceIndex) followClaims() {
	names, known := x.c.ResourceClaims.Since(x.claims)
	x.claims = x.c.ResourceClaims.Version
	for _, name := range names {
		x.readClaim(name)
	}

	if known {
		return
	}
	// Deleted claims are found only in held and owners.
	for name := range x.held {
		x.readClaim(name)
	}

	for name := range x.owners {
		x.readClaim(name)
	}
	for claim := range x.c.ResourceClaims.Each {
		x.readClaim(cluster.Name{Namespace: claim.Namespace, Name: claim.Name})
	}
}

// readClaim recounts the devices of a claim. Most changes of a claim leave its devices unchanged;
// then no node counts as changed.
func (x *deviceIndex) readClaim(name cluster.Name) {
	var now *resourcev1.AllocationResult
	claim, exists := x.c.ResourceClaims.Get(name.Namespace, name.Name)
	if exists {
		now = claim.Status.Allocation
	}

	// The owner is read even for a claim without devices, because a claim left by an attempt may
	// lack devices.
	x.readOwner(name, claim)
	before := x.held[name]
	// Replace the allocation even if its devices are unchanged, because a later recount subtracts
	// it.
	if before != nil && now != nil && sameDevices(before, now) {
		x.held[name] = now
		for i := range now.Devices.Results { // the holders may differ
			x.claimsIn[poolID{now.Devices.Results[i].Driver, now.Devices.Results[i].Pool}][name] = nil
		}
		return
	}

	delete(x.held, name)
	if before != nil {
		x.countAllocation(name, before, -1)
	}

	if now != nil {
		x.held[name] = now
		x.countAllocation(name, now, 1)
	}
}

// countAllocation adds or subtracts (by 1 or -1) the devices of a claim's allocation.
func (x *deviceIndex) countAllocation(name cluster.Name, allocation *resourcev1.AllocationResult, by int) {
	for i := range allocation.Devices.Results {
		id := poolID{allocation.Devices.Results[i].Driver, allocation.Devices.Results[i].Pool}
		if pool := x.pools[id]; pool != nil {
			x.touchPool(pool)
		}
		switch of := x.claimsIn[id]; {
		case by < 0:
			if delete(of, name); len(of) == 0 {
				delete(x.claimsIn, id)
			}
		case of == nil:
			x.claimsIn[id] = map[cluster.Name]*cluster.Pod{name: nil}
		default:
			of[name] = nil
		}
	}
	x.countDevices(allocation, by)
}

// countDevices adds or subtracts the devices of an allocation. Devices with admin access remain
// available to other claims.
func (u *deviceUse) countDevices(allocation *resourcev1.AllocationResult, by int) {
	for i := range allocation.Devices.Results {
		result := &allocation.Devices.Results[i]
		if result.AdminAccess != nil && *result.AdminAccess {
			continue
		}
		device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
		if result.ShareID != nil {
			u.countShare(device, result, by)
			continue
		}

		// Two claims can hold the same device if another allocator assigned one of them. The device
		// is free only after both claims are released.
		if u.holders[device] += by; u.holders[device] <= 0 {
			delete(u.holders, device)
		}
		u.takeWhole(device)
	}
}

// takeWhole records whether the allocator must treat a device as allocated to one claim: a claim
// holds the device, or holds a share of it although the device no longer allows several
// allocations. v1.37's allocator overlooks the second case (kubernetes#140798).
func (u *deviceUse) takeWhole(device structured.DeviceID) {
	if u.holders[device] > 0 || len(u.shares[device]) > 0 && u.isExclusive(device) {
		u.taken.AllocatedDevices.Insert(device)
	} else {
		u.taken.AllocatedDevices.Delete(device)
	}
}

// isExclusive reports whether a device exists and does not allow several allocations. If slices of
// the newest generation contradict each other, the device is exclusive.
func (u *deviceUse) isExclusive(device structured.DeviceID) bool {
	pool := u.pools[poolID{device.Driver.String(), device.Pool.String()}]
	if pool == nil {
		return false
	}
	name, newest, exclusive := device.Device.String(), int64(-1), false
	for _, slice := range pool.slices {
		generation := slice.Spec.Pool.Generation
		for i := range slice.Spec.Devices {
			// Slices of older generations are outdated, and about to be deleted.
			if d := &slice.Spec.Devices[i]; d.Name == name && generation >= newest {
				exclusive = exclusive && generation == newest || !ptr.Deref(d.AllowMultipleAllocations, false)
				newest = generation
			}
		}
	}
	return exclusive
}

// takeSharesWhole updates, for the shared devices of a changed pool, whether they are now
// exclusive.
func (x *deviceIndex) takeSharesWhole(pool *devicePool) {
	if len(x.shares) == 0 {
		return
	}
	for _, slice := range pool.slices {
		for i := range slice.Spec.Devices {
			if device := deviceOf(slice, i); len(x.shares[device]) > 0 {
				x.takeWhole(device)
			}
		}
	}
}

// countShare adds or subtracts one share of a device. It recomputes the consumed capacity from all
// remaining shares.
func (u *deviceUse) countShare(device structured.DeviceID, result *resourcev1.DeviceRequestAllocationResult, by int) {
	share := structured.MakeSharedDeviceID(device, result.ShareID)
	of := u.shares[device]
	if by > 0 {
		if of == nil {
			of = map[structured.SharedDeviceID]*resourcev1.DeviceRequestAllocationResult{}
			u.shares[device] = of
		}
		of[share] = result
		u.taken.AllocatedSharedDeviceIDs.Insert(share)
	} else {
		delete(of, share)
		u.taken.AllocatedSharedDeviceIDs.Delete(share)
	}

	// Only devices with capacity-consuming shares have an entry.
	delete(u.taken.AggregatedCapacity, device)
	for _, other := range of {
		if other.ConsumedCapacity != nil {
			u.taken.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, other.ConsumedCapacity))
		}
	}

	if len(of) == 0 {
		delete(u.shares, device)
	}
	u.takeWhole(device)
}

// sameDevices reports whether two allocations take the same devices.
func sameDevices(a, b *resourcev1.AllocationResult) bool {
	return a == b || slices.EqualFunc(a.Devices.Results, b.Devices.Results, func(a, b resourcev1.DeviceRequestAllocationResult) bool {
		return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device && ptr.Equal(a.ShareID, b.ShareID) &&
			ptr.Equal(a.AdminAccess, b.AdminAccess) && apiequality.Semantic.DeepEqual(a.ConsumedCapacity, b.ConsumedCapacity)
	})
}

// readOwner records the pod served by a claim for extended resources. The claim is nil if it was
// deleted.
func (x *deviceIndex) readOwner(name cluster.Name, claim *resourcev1.ResourceClaim) {
	if pod, known := x.owners[name]; known {
		delete(x.owners, name)
		if delete(x.extended[pod], name); len(x.extended[pod]) == 0 {
			delete(x.extended, pod)
		}
	}

	if claim == nil || claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return
	}
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil {
		return
	}

	rules.Inner(x.extended, owner.UID)[name], x.owners[name] = true, owner.UID
}

// extendedClaim returns the existing claim for a pod's extended resources, or nil.
func (x *deviceIndex) extendedClaim(namespace, pod string, uid types.UID) *resourcev1.ResourceClaim {
	for name := range x.extended[uid] {
		if claim, ok := x.c.ResourceClaims.Get(name.Namespace, name.Name); ok && name.Namespace == namespace &&
			isExtendedClaimOf(claim, pod, uid) {
			return claim
		}
	}
	return nil
}
