// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// deviceClaim draws a ResourceClaim, pending or allocated.
func (g *deviceGenerator) deviceClaim(namespace, name string) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)}}
	for i := range 1 + g.drawFew(2) {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, g.deviceRequest(fmt.Sprintf("r%d", i)))
	}

	if g.withChance(0.2) {
		c := resourcev1.DeviceConstraint{}
		attribute := resourcev1.FullyQualifiedName(gpuDriver + "/" + pickOne(g, "numa", "size"))
		if g.withChance(0.7) {
			c.MatchAttribute = &attribute
		} else {
			c.DistinctAttribute = &attribute
		}
		if g.withChance(0.3) {
			c.Requests = []string{"r0"}
		}
		claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{c}
	}

	if g.withChance(0.35) {
		g.allocateClaim(claim)
	}
	if g.withChance(0.03) {
		deleted := g.nextTime()
		claim.DeletionTimestamp = &deleted
	}

	g.w.addObject(claim)
	g.deviceClaims[namespace] = append(g.deviceClaims[namespace], name)
	return claim
}

func (g *deviceGenerator) deviceRequest(name string) resourcev1.DeviceRequest {
	r := resourcev1.DeviceRequest{Name: name}
	if g.withChance(0.2) {
		for i := range g.drawBetween(1, 3) {
			e := g.exactRequest()
			r.FirstAvailable = append(r.FirstAvailable, resourcev1.DeviceSubRequest{Name: fmt.Sprintf("s%d", i),
				DeviceClassName: e.DeviceClassName,
				Selectors:       e.Selectors, AllocationMode: e.AllocationMode, Count: e.Count,
				Tolerations: e.Tolerations, Capacity: e.Capacity})
		}
		return r
	}
	r.Exactly = g.exactRequest()
	if g.withChance(0.05) {
		r.Exactly.AdminAccess = ptr.To(true)
	}
	return r
}

func (g *deviceGenerator) exactRequest() *resourcev1.ExactDeviceRequest {
	e := &resourcev1.ExactDeviceRequest{DeviceClassName: pickOne(g, "gpu", "gpu", "big", "nic", "any"),
		AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(pickOne(g, 1, 1, 1, 2, 3))}
	if g.withChance(0.03) {
		e.DeviceClassName = "gone"
	}

	if g.withChance(0.1) {
		e.AllocationMode, e.Count = resourcev1.DeviceAllocationModeAll, 0
	}
	if g.withChance(0.2) {
		e.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: pickOne(g,
			`device.attributes["gpu.example.com"].numa == 0`, `device.attributes["gpu.example.com"].size == "small"`,
			`device.attributes["gpu.example.com"].linked`, `device.attributes["gpu.example.com"].firmware.isGreaterThan(semver("1.5.0"))`,
			`device.allowMultipleAllocations == true`,
			`device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("20Gi"))`)}}}
	}

	if g.withChance(0.2) {
		e.Tolerations = []resourcev1.DeviceToleration{pickOne(g,
			resourcev1.DeviceToleration{Key: "broken", Operator: resourcev1.DeviceTolerationOpExists},
			resourcev1.DeviceToleration{Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoSchedule},
			resourcev1.DeviceToleration{Key: "broken", Operator: resourcev1.DeviceTolerationOpEqual, Value: "a"})}
	}

	if g.withChance(0.2) {
		e.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
			pickOne[resourcev1.QualifiedName](g, "memory", "memory", "memory", "gpu.example.com/memory"): resource.MustParse(pickOne(g, "3Gi", "5Gi", "6Gi", "20Gi")),
		}}
	}
	return e
}

// allocateClaim allocates a free device, or a share of a device, to the claim, as a scheduler would
// have done earlier.
func (g *deviceGenerator) allocateClaim(claim *resourcev1.ResourceClaim) {
	if len(g.free) == 0 {
		return
	}
	i := g.IntN(len(g.free))
	d := g.free[i]
	result := resourcev1.DeviceRequestAllocationResult{Request: "r0", Driver: d.driver, Pool: d.pool, Device: d.device}
	switch {
	case d.divisible, g.withChance(0.1): // a device that is no longer divisible may have been when it was allocated
		if !d.divisible {
			g.free = append(g.free[:i], g.free[i+1:]...)
		}
		result.ShareID = ptr.To("share-" + claim.UID)
		result.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse(pickOne(g, "4Gi", "5Gi"))}
	case g.withChance(0.05):
		result.AdminAccess = ptr.To(true) // admin access leaves the device free
	default:
		g.free = append(g.free[:i], g.free[i+1:]...)
	}
	allocation := &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{result},
	}}
	if g.withChance(0.9) {
		at := g.nextTime()
		allocation.AllocationTimestamp = &at
	}
	if d.node != "" {
		allocation.NodeSelector = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn,
				Values: []string{d.node}}}}}}
	}
	claim.Status.Allocation = allocation
	if g.withChance(0.6) {
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "someone", UID: "uid-someone"}}
	}
}

// podClaims gives a pod requests for devices: by an existing claim, by a claim created from a
// template for the pod, or as an extended resource.
func (g *deviceGenerator) podClaims(pod *v1.Pod) {
	if g.leaning["devices"] == 0 || !g.withChance(min(0.3, g.leaning["devices"])) {
		return
	}
	for i := range 1 + g.drawFew(2) {
		c := v1.PodResourceClaim{Name: fmt.Sprintf("c%d", i)}
		if names := g.deviceClaims[pod.Namespace]; len(names) > 0 && g.withChance(0.6) {
			c.ResourceClaimName = ptr.To(pickOne(g, names...))
		} else {
			g.madeClaim(pod, &c)
		}
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, c)
	}

	if g.withChance(0.4) {
		g.extendedRequests(pod.Spec.Containers)
		g.extendedRequests(pod.Spec.InitContainers)
		if g.withChance(0.7) {
			pod.Spec.ResourceClaims = nil
		}
	}
}

// extendedRequests makes the first container and some of the others request devices as extended
// resources.
func (g *deviceGenerator) extendedRequests(containers []v1.Container) {
	for i := range containers {
		if i > 0 && g.withChance(0.5) {
			continue
		}
		list := containers[i].Resources.Requests
		if list == nil {
			list = v1.ResourceList{}
			containers[i].Resources.Requests = list
		}
		g.putAmount(list, pickOne(g, fpga, fpga, v1.ResourceName(resourcev1.ResourceDeviceClassPrefix+"gpu")), "0", "1", "1", "2")
	}
}

// madeClaim draws the claim created from a template for the pod. In some cases the claim does not
// exist, or belongs to another pod.
func (g *deviceGenerator) madeClaim(pod *v1.Pod, c *v1.PodResourceClaim) {
	c.ResourceClaimTemplateName = ptr.To("template")
	status := v1.PodResourceClaimStatus{Name: c.Name}
	switch g.IntN(10) {
	case 0: // the pod's status does not list the claim
		return
	case 1: // the pod's status reports that no claim is needed
	case 2:
		status.ResourceClaimName = ptr.To("gone")
	default:
		claim := g.deviceClaim(pod.Namespace, pod.Name+"-"+c.Name)
		uid := pod.UID
		if g.withChance(0.05) {
			uid = "uid-other"
		}
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: uid, Controller: ptr.To(true)}}
		if claim.Status.Allocation != nil && g.withChance(0.5) {
			claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
		}
		status.ResourceClaimName = ptr.To(claim.Name)
	}
	pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, status)
}
