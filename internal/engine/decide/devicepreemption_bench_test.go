// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// BenchmarkPreemptionForDevices measures decisions with preemption in a cluster of 1,213 nodes with
// eight devices each, all held by less important pods.
func BenchmarkPreemptionForDevices(b *testing.B) {
	c, profile := cluster.New(), preemptingProfile(b)
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	number := 0
	pod := func(priority int32) (*v1.Pod, *resourcev1.ResourceClaim) {
		number++
		name := fmt.Sprintf("pod-%d", number)
		return &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
				Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Priority: &priority,
					ResourceClaims: []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &name}},
					Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
						Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}}},
			}, &resourcev1.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
				Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
					Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}},
			}
	}
	for i := range 1213 {
		node := fmt.Sprintf("node-%d", i)
		c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("96"), v1.ResourceMemory: resource.MustParse("700Gi"), v1.ResourcePods: resource.MustParse("110")}}})
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}}}
		for j := range 8 {
			device := fmt.Sprintf("gpu-%d", j)
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: device})
			object, claim := pod(int32((i + j) % 3))
			claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "gpu.example.com", Pool: node, Device: device}}}}
			claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: object.Name, UID: object.UID}}
			object.Status.StartTime = new(metav1.NewTime(time.Unix(1e9+int64(number*7919%100000), 0)))
			c.ResourceClaims.Set(claim)
			c.Place(c.Pending(object), c.Node(node))
		}
		c.ResourceSlices.Set(slice)
	}
	decider := decide.New(c, profile, 1)
	for b.Loop() {
		object, claim := pod(10)
		c.ResourceClaims.Set(claim)
		p := c.Pending(object)
		if found := decider.Decide(p); found.Node != nil || found.Err != nil {
			b.Fatal(found)
		}
		if found := decider.Preempt(p); len(found.Victims) != 1 || found.Victims[0].Class.Priority != 0 {
			b.Fatal(found.Message, found.Victims)
		}
		c.ResourceClaims.Delete("default", claim.Name)
	}
}
