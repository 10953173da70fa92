// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

// This file simulates the requests about resource claims for deviceRun: of the scheduler, and of
// the resource claim controller.

func (r *deviceRun) addNode(name, rack string, devices int) {
	slice := r.addSlice(name, rack, 1)
	for j := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", j)})
	}
	r.put(ResourceSlices, slice)
}

// addSlice adds a node, and returns a slice of its pool.
func (r *deviceRun) addSlice(name, rack string, count int64) *resourcev1.ResourceSlice {
	n := aNode(name, "100")
	if rack != "" {
		n.Labels["rack"] = rack
	}
	r.put(Nodes, n)
	return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("slice-" + name)}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: count},
	}}
}

// addPartitions adds a node with a device, which is allocated as a whole, or as two halves.
func (r *deviceRun) addPartitions(name string) {
	slice := r.addSlice(name, "", 2)
	counters := slice.DeepCopy()
	counters.Name, counters.UID = name+"-counters", slice.UID+"-counters"
	counters.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "set", Counters: map[string]resourcev1.Counter{"memory": {Value: resource.MustParse("2")}}}}
	for _, part := range []string{"half-a", "half-b", "whole"} {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name: part, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"whole": {BoolValue: new(part == "whole")}},
			ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: "set", Counters: map[string]resourcev1.Counter{
				"memory": {Value: *resource.NewQuantity(int64(len(unitsOf(part))), resource.DecimalSI)}}}},
		})
	}
	r.put(ResourceSlices, counters)
	r.put(ResourceSlices, slice)
}

// unitsOf lists the parts of a node's devices that a device consists of.
func unitsOf(device string) []string {
	if device == "whole" {
		return []string{"half-a", "half-b"}
	}
	return []string{device}
}

// checkDevices verifies that no device of a claim is allocated twice.
func (r *deviceRun) checkDevices(claim *resourcev1.ResourceClaim) {
	for _, object := range r.objects[ResourceClaims] {
		other := object.(*resourcev1.ResourceClaim)
		if other.UID == claim.UID || other.Status.Allocation == nil || claim.Status.Allocation == nil {
			continue
		}
		for _, a := range claim.Status.Allocation.Devices.Results {
			for _, b := range other.Status.Allocation.Devices.Results {
				if a.Pool == b.Pool && slices.ContainsFunc(unitsOf(a.Device), func(unit string) bool { return slices.Contains(unitsOf(b.Device), unit) }) {
					r.t.Errorf("%s of %s is allocated to %s and %s", a.Device, a.Pool, claim.Name, other.Name)
				}
			}
		}
	}
}

// arrive creates a pod with a claim of its own, a claim shared with another pod, or an extended
// resource.
func (r *deviceRun) arrive(name string, priority int32) {
	count := int64(1 + r.IntN(5)/4)
	if r.IntN(4) == 0 {
		r.arriveWithResource(name, priority, count)
		return
	}
	claim := claimOf(name, count)
	if priority == 0 && r.IntN(4) == 0 {
		claim = claimOf(fmt.Sprintf("shared-%d", r.IntN(3)), count)
	}
	r.arriveWithClaim(name, priority, claim, func(*v1.Pod) {})
}

// claimOf returns a claim for some devices.
func claimOf(name string, count int64) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count},
		}}}},
	}
}

// arriveWithClaim creates a pod with a claim, which is created unless it exists.
func (r *deviceRun) arriveWithClaim(name string, priority int32, claim *resourcev1.ResourceClaim, edit func(*v1.Pod)) {
	p := aPod(name, "1")
	p.Spec.Priority, p.Spec.ResourceClaims = &priority, []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &claim.Name}}
	edit(p)
	if r.objects[ResourceClaims][cluster.Name{Namespace: "default", Name: claim.Name}] == nil {
		r.put(ResourceClaims, claim)
	}
	r.put(Pods, p)
}

// arriveWithDevice creates a pod with a claim of its own for one device.
func (r *deviceRun) arriveWithDevice(name string, priority int32, edit func(*v1.Pod)) {
	r.arriveWithClaim(name, priority, claimOf(name, 1), edit)
}

// arriveWithResource creates a pod with an extended resource.
func (r *deviceRun) arriveWithResource(name string, priority int32, count int64) {
	p := aPod(name, "1")
	p.Spec.Priority = &priority
	p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = *resource.NewQuantity(count, resource.DecimalSI)
	r.put(Pods, p)
}

func (r *deviceRun) claim(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, bool) {
	return stored[*resourcev1.ResourceClaim](r, ResourceClaims, claim.Namespace, claim.Name, claim.UID)
}

// writeClaims sends the requests of a WriteClaims: for each claim its creation, its finalizer, its
// allocation, and its name in the status of the pod. Only the third is always needed.
func (r *deviceRun) writeClaims(a WriteClaims) {
	o := &Outcome{Written: make([]bool, len(a.Claims.Claims))}
	var requests []func() (string, *Fault)
	for i := range a.Claims.Claims {
		reserved, use, lives := &a.Claims.Claims[i], a.Uses[i], r.lives
		claim := reserved.Before
		requests = append(requests, func() (string, *Fault) {
			if reserved.Before != nil {
				return "", nil
			}
			claim = reserved.Claim.DeepCopy()
			r.version++
			claim.Name, claim.UID = fmt.Sprint(claim.GenerateName, r.version), types.UID(fmt.Sprint("claim-", r.version))
			claim.Finalizers, claim.Status = nil, resourcev1.ResourceClaimStatus{}
			r.put(ResourceClaims, claim)
			r.tell(lives, ClaimMade{a.Ticket, cluster.Name{Namespace: claim.Namespace, Name: reserved.Claim.Name}, claim.DeepCopy()})
			return "create " + claim.Name, nil
		}, func() (string, *Fault) {
			current, ok := r.claim(claim)
			if !ok || slices.Contains(current.Finalizers, resourcev1.Finalizer) {
				return "", nil
			}
			current.Finalizers = append(current.Finalizers, resourcev1.Finalizer)
			r.put(ResourceClaims, current)
			return "protect " + claim.Name, nil
		}, func() (string, *Fault) {
			current, ok := r.claim(claim)
			if !ok {
				return "", &Fault{Message: "the claim is gone"}
			}
			decided := reserved.Claim.Status.Allocation
			switch {
			case current.Status.Allocation == nil && !use.Decided:
				return "", &Fault{Message: "the claim was deallocated"}
			case current.Status.Allocation == nil:
				current.Status.Allocation = decided.DeepCopy()
			case use.Decided && current.Status.Allocation.Devices.Results[0].Device != decided.Devices.Results[0].Device:
				return "", &Fault{Message: "the claim was allocated"}
			}
			if !reserved.IsReserved(current) {
				current.Status.ReservedFor = append(current.Status.ReservedFor, reserved.Holder)
			}
			r.put(ResourceClaims, current)
			o.Written[i], o.Claims = true, append(o.Claims, current)
			return "allocate " + claim.Name, nil
		}, func() (string, *Fault) {
			if !reserved.Extended {
				return "", nil
			}
			r.changePod(a.Attempt.Pod.UID, func(p *v1.Pod) {
				p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{RequestMappings: a.Claims.Mappings, ResourceClaimName: claim.Name}
			})
			return "name " + claim.Name, nil
		})
	}
	r.send(a.Ticket, o, requests...)
}

// release returns the requests that release a reservation, or delete a claim for extended
// resources.
func (r *deviceRun) release(claim *resourcev1.ResourceClaim, holder types.UID) []func() (string, *Fault) {
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" {
		return r.deallocate(DeallocateClaim{Claim: claim, Delete: true})
	}
	return []func() (string, *Fault){func() (string, *Fault) {
		current, ok := r.claim(claim)
		if !ok {
			return "", nil
		}
		current.Status.ReservedFor = slices.DeleteFunc(current.Status.ReservedFor, func(u resourcev1.ResourceClaimConsumerReference) bool { return u.UID == holder })
		r.put(ResourceClaims, current)
		r.after(time.Second, r.syncClaims)
		return "release " + claim.Name, nil
	}}
}

// deallocate returns the requests of a DeallocateClaim.
func (r *deviceRun) deallocate(a DeallocateClaim) []func() (string, *Fault) {
	return []func() (string, *Fault){func() (string, *Fault) {
		current, ok := r.claim(a.Claim)
		switch {
		case !ok:
			return "", nil
		case a.Delete:
			current.Finalizers = nil
		case current.ResourceVersion != a.Claim.ResourceVersion:
			return "", &Fault{Message: "conflict"}
		default:
			current.Status = *a.Claim.Status.DeepCopy()
		}
		r.put(ResourceClaims, current)
		return "deallocate " + a.Claim.Name, nil
	}, func() (string, *Fault) {
		current, ok := r.claim(a.Claim)
		if !ok || !a.Delete {
			return "", nil
		}
		r.drop(ResourceClaims, current)
		return "delete " + a.Claim.Name, nil
	}}
}

// syncClaims makes the next request of the resource claim controller, if any, and continues later:
// it deallocates claims whose users have left, and deletes claims for extended resources with their
// pods. A killed controller starts again a few seconds later.
func (r *deviceRun) syncClaims() {
	list := slices.SortedFunc(maps.Values(r.objects[ResourceClaims]), func(a, b metav1.Object) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for _, object := range list {
		claim := object.(*resourcev1.ResourceClaim).DeepCopy()
		left := slices.DeleteFunc(slices.Clone(claim.Status.ReservedFor), func(u resourcev1.ResourceClaimConsumerReference) bool {
			return u.Resource == "pods" && r.pod(u.UID) == nil
		})
		owner := metav1.GetControllerOfNoCopy(claim)
		switch {
		case len(left) < len(claim.Status.ReservedFor):
			if claim.Status.ReservedFor = left; len(left) == 0 {
				claim.Status.Allocation = nil
			}
			r.put(ResourceClaims, claim)
			r.syncNext("release "+claim.Name, func() { r.unprotect(claim) })
			return
		case owner != nil && r.pod(owner.UID) == nil:
			r.drop(ResourceClaims, object)
			r.syncNext("delete "+claim.Name, r.syncClaims)
			return
		}
	}
}

// unprotect removes the finalizer of a claim that the controller has deallocated, unless the claim
// was changed since.
func (r *deviceRun) unprotect(claim *resourcev1.ResourceClaim) {
	if current, ok := r.claim(claim); ok && current.ResourceVersion == claim.ResourceVersion && claim.Status.Allocation == nil {
		current.Finalizers = nil
		r.put(ResourceClaims, current)
		r.syncNext("unprotect "+claim.Name, r.syncClaims)
		return
	}
	r.syncClaims()
}

// syncNext counts a request of the controller, and continues with next, or after a restart.
func (r *deviceRun) syncNext(request string, next func()) {
	if r.noteRequest("controller: %s", request) {
		r.after(4*time.Second, r.syncClaims)
	} else {
		r.after(50*time.Millisecond, next)
	}
}
