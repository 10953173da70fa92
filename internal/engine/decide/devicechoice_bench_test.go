// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

const choosing = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint: {enabled: [{name: Fragmentation}]}
    score: {disabled: [{name: "*"}], enabled: [{name: Fragmentation}]}
  pluginConfig:
  - name: Fragmentation
    args:
      resource: example.com/gpu
      unit: 1000
      driver: gpu.example.com
      tasks:
      - {weight: 3, requests: {example.com/gpu: "810"}}
      - {weight: 2, requests: {example.com/gpu: "470"}}
      - {requests: {example.com/gpu: "190"}}
      - {requests: {example.com/gpu: "320"}}
`

// BenchmarkSharesOfDevices measures a decision for a pod with a claim for a share of a device,
// including the choice and allocation of the device, on 1,213 nodes with five GPUs each.
func BenchmarkSharesOfDevices(b *testing.B) {
	profile, c := choosingProfile(b), cluster.New()
	setDeviceClass(c)
	for i := range 1213 {
		setDeviceNode(c, fmt.Sprintf("node-%04d", i))
	}
	decider, n := decide.New(c, profile, 1), 0
	place := func() {
		n++
		p := c.Pending(sharePod(c, n, []string{"810", "470", "190", "320"}[n%4]))
		d := decider.Decide(p)
		for unfinished := (*plugins.Unfinished)(nil); errors.As(d.Err, &unfinished) && unfinished.Found > 0; {
			d = decider.Decide(p)
		}
		if d.Node == nil {
			b.Fatalf("pod %d has no node: %v", n, d.Err)
		}
		reserveAll(b, c, profile, p, d.Node)
	}

	for range 400 { // afterwards all shapes are known, as in a cluster that has run for a while
		place()
	}
	for b.Loop() {
		if n > 8000 {
			b.Fatal("the cluster is full: -benchtime 5000x at most")
		}
		place()
	}
}

func setDeviceClass(c *cluster.Cluster) {
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
}

func setDeviceNode(c *cluster.Cluster, name string) {
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("96"), v1.ResourceMemory: resource.MustParse("700Gi"), v1.ResourcePods: resource.MustParse("250")}}})
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1}}}
	for i := range 5 {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name: fmt.Sprintf("gpu-%d", i), AllowMultipleAllocations: new(true),
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"milli": {Value: resource.MustParse("1000")}},
		})
	}
	c.ResourceSlices.Set(slice)
}

func sharePod(c *cluster.Cluster, n int, amount string) *v1.Pod {
	name := fmt.Sprintf("pod-%d", n)
	c.ResourceClaims.Set(&resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "one",
			Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"milli": resource.MustParse(amount)}}},
		}}}},
	})
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{
			SchedulerName:  v1.DefaultSchedulerName,
			ResourceClaims: []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &name}},
			Containers:     []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}}},
		},
	}
}
