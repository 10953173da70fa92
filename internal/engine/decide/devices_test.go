// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimNames lists the names of device claims, all in the namespace default.
var claimNames = []string{"d1", "d2", "d3"}

// devices sets or removes a random device class, ResourceSlice or claim.
func (m *machine) devices(t *draw) {
	gone := t.chance(0.25)
	switch t.IntN(3) {
	case 0:
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
		if t.chance(0.3) { // on nodes whose kubelet does not report this resource, requests for it are met by devices
			class.Spec.ExtendedResourceName = new("example.com/gpu")
		}
		if gone {
			m.c.DeviceClasses.Delete("", class.Name)
			return
		}
		m.c.DeviceClasses.Set(class)
	case 1:
		slice := m.slice(t)
		if gone {
			m.c.ResourceSlices.Delete("", slice.Name)
			return
		}
		m.c.ResourceSlices.Set(slice)
	default:
		claim := m.claim(t)
		if gone {
			m.c.ResourceClaims.Delete(claim.Namespace, claim.Name)
			return
		}
		m.c.ResourceClaims.Set(claim)
	}
}

// slice draws a ResourceSlice of one node, of all nodes, or of the nodes with a label.
func (m *machine) slice(t *draw) *resourcev1.ResourceSlice {
	node := one(t, nodeNames[:4]...)
	m.next++
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1, Generation: int64(m.next)},
	}}
	switch t.IntN(5) {
	case 0:
		slice.Spec.AllNodes = new(true)
	case 1:
		slice.Spec.NodeSelector = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: one(t, v1.LabelHostname, v1.LabelTopologyZone), Operator: v1.NodeSelectorOpIn, Values: []string{"a", "z1"}},
		}}}}
	default:
		slice.Spec.NodeName = &node
	}
	for i := range 1 + t.IntN(2) {
		device := resourcev1.Device{Name: fmt.Sprint("gpu-", i)}
		if t.chance(0.4) { // claims take shares of the device
			device.AllowMultipleAllocations = new(true)
			device.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"parts": {Value: resource.MustParse("4")}}
		}
		slice.Spec.Devices = append(slice.Spec.Devices, device)
	}
	t.say("  slice %s of %d devices", slice.Name, len(slice.Spec.Devices))
	return slice
}

// claim draws a claim for one or two devices, possibly allocated.
func (m *machine) claim(t *draw) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: one(t, claimNames...)},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "one", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(1 + t.IntN(2)),
			},
		}}}},
	}
	if t.chance(0.4) {
		claim.Spec.Devices.Requests[0].Exactly.Capacity = &resourcev1.CapacityRequirements{
			Requests: map[resourcev1.QualifiedName]resource.Quantity{"parts": resource.MustParse(one(t, "1", "2", "4"))}}
	}
	if t.chance(0.4) {
		node := one(t, nodeNames[:4]...)
		claim.Status.Allocation = &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: "one", Driver: "gpu.example.com", Pool: node, Device: one(t, "gpu-0", "gpu-1")},
			}},
			NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}},
			}}}},
		}
		if len(m.placed) > 0 && t.chance(0.5) {
			user := one(t, m.placed...)
			claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: user.Name, UID: user.UID}}
		}
	}
	t.say("  claim %s, given: %t", claim.Name, claim.Status.Allocation != nil)
	return claim
}

// resize changes the requests of a placed pod in place, possibly ahead of the kubelet's status.
func (m *machine) resize(t *draw) {
	m.change(t, func(pod *v1.Pod) {
		c := &pod.Spec.Containers[0]
		before := c.Resources.Requests.DeepCopy()
		c.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(one(t, "50m", "400m", "900m", "2"))}
		pod.Status.ContainerStatuses, pod.Status.Conditions = nil, nil
		if t.chance(0.6) {
			pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: c.Name, AllocatedResources: before, Resources: &v1.ResourceRequirements{Requests: before}}}
		}
		if t.chance(0.3) {
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonInfeasible}}
		}
	})
}
