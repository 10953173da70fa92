// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// BenchmarkDevices measures pods with device claims on 500 nodes of ten devices each, from the
// creation of the claim to its reservation, including the claim's round trips through the API. The
// objects match scheduler_perf's dra workloads. In mode half, half of the devices are initially
// allocated. In mode full, all but ten devices are allocated, and pods are added and removed. In
// mode shapes, no two claims have the same requests. In mode weighed, the devices are an extended
// resource that affects the score.
func BenchmarkDevices(b *testing.B) {
	for _, mode := range []string{"template", "half", "full", "shared", "selectors", "extended", "weighed", "shapes"} {
		b.Run(mode, func(b *testing.B) { benchDevices(b, mode) })
	}
}

const (
	benchDeviceNodes   = 500
	benchDevicesOfNode = 10
	benchPodsAtOnce    = benchDeviceNodes * benchDevicesOfNode / 2
)

func benchDevices(b *testing.B, mode string) {
	var c *cluster.Cluster
	var d *Decider
	var came []*cluster.Pod
	first, most := 0, benchPodsAtOnce
	begin := func() {
		c, came = deviceCluster(), came[:0]
		d = New(c, deviceProfile(b, mode), 1)
		first, most = 0, benchPodsAtOnce
		switch mode {
		case "half":
			takeDevices(c, benchPodsAtOnce)
		case "full":
			takeDevices(c, 2*benchPodsAtOnce-10)
			most = 10
		}
	}
	begin()
	i := 0
	for b.Loop() {
		if len(came)-first == most {
			b.StopTimer()
			if mode == "full" {
				b.StartTimer()
				ReleaseClaims(c, came[first])
				c.RemovePod(came[first].UID())
				first++
			} else {
				begin()
				b.StartTimer()
			}
		}
		pod := devicePod(c, i, mode)
		p := c.Pending(pod)
		decision := d.Decide(p)
		if decision.Node == nil {
			b.Fatalf("pod %d: no node: %v", i, decision.Err)
		}
		if err := reserveDevices(d, p, decision.Node); err != nil {
			b.Fatal(err)
		}
		c.Place(p, decision.Node)
		if claim, ok := c.ResourceClaims.Get("default", claimOfPod(i, mode)); ok { // the watch reports its new finalizer and status
			c.ResourceClaims.Set(claim.DeepCopy())
			c.ResourceClaims.Set(claim.DeepCopy())
		}
		came = append(came, p)
		i++
	}
}

func deviceProfile(b *testing.B, mode string) *plugins.Profile {
	profile := plugins.Default()
	if mode != "weighed" {
		return profile
	}
	profile, err := plugins.NewProfile(plugins.DefaultSchedulerName, profile.At, profile.Weights, map[string]any{
		"NodeResourcesFit": &config.NodeResourcesFitArgs{ScoringStrategy: &config.ScoringStrategy{
			Type: config.LeastAllocated, Resources: []config.ResourceSpec{{Name: "example.com/gpu", Weight: 1}},
		}},
	})
	if err != nil {
		b.Fatal(err)
	}
	return profile
}

// ReleaseClaims mimics the resource claim controller after the deletion of a pod.
func ReleaseClaims(c *cluster.Cluster, p *cluster.Pod) {
	changed, gone := plugins.ClaimsWithout(c, p)
	for _, claim := range changed {
		c.ResourceClaims.Set(claim)
	}
	for _, claim := range gone {
		c.ResourceClaims.Delete(claim.Namespace, claim.Name)
	}
}

func reserveDevices(d *Decider, p *cluster.Pod, n *cluster.Node) error {
	for _, r := range d.profile.Reservers {
		if _, err := r.Reserve(d.c, p, n); err != nil {
			return err
		}
	}
	return nil
}

func deviceCluster() *cluster.Cluster {
	c := benchCluster(benchDeviceNodes, false)
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "test-class"}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "test-driver.cdi.k8s.io"`}}},
	}}
	extended := class.DeepCopy()
	extended.Name, extended.Spec.ExtendedResourceName = "extended-class", new("example.com/gpu")
	c.DeviceClasses.Set(class)
	c.DeviceClasses.Set(extended)
	for i := range benchDeviceNodes {
		node := fmt.Sprintf("node-%d", i)
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "test-driver.cdi.k8s.io", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
		}}
		for i := range benchDevicesOfNode {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
				Name: fmt.Sprintf("instance-%d", i),
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
					"model": {StringValue: new("A100")}, "family": {StringValue: new("GPU")}, "driverVersion": {VersionValue: new("1.2.3")},
					"dra.example.com/numa": {IntValue: new(int64(i))},
				},
				Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("1Gi")}},
			})
		}
		c.ResourceSlices.Set(slice)
	}
	return c
}

// takeDevices allocates devices to claims unrelated to any pod.
func takeDevices(c *cluster.Cluster, count int) {
	for i := range count {
		node, device := fmt.Sprintf("node-%d", i%benchDeviceNodes), fmt.Sprintf("instance-%d", i/benchDeviceNodes)
		claim := benchClaim(fmt.Sprintf("init-%d", i), "half")
		claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Request: "req-0", Driver: "test-driver.cdi.k8s.io", Pool: node, Device: device}},
		}}
		c.ResourceClaims.Set(claim)
	}
}

func benchClaim(name, mode string) *resourcev1.ResourceClaim {
	request := &resourcev1.ExactDeviceRequest{
		DeviceClassName: "test-class", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
	}
	if mode == "selectors" {
		request.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: `device.attributes["dra.example.com"].numa >= 2 && device.capacity["test-driver.cdi.k8s.io"].memory.compareTo(quantity("1Gi")) >= 0`,
		}}}
	}
	called := "req-0"
	if mode == "shapes" {
		called = name
	}
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: called, Exactly: request}}}},
	}
}

// claimOfPod returns the name of the pod's claim; in the mode shared, five pods share a claim.
func claimOfPod(i int, mode string) string {
	if mode == "shared" {
		i /= 5
	}
	return fmt.Sprintf("claim-%d", i)
}

func devicePod(c *cluster.Cluster, i int, mode string) *v1.Pod {
	pod := benchPod(0, "plain")
	pod.Name, pod.UID = fmt.Sprintf("pod-%d", i), types.UID(fmt.Sprint(i))
	if mode == "extended" || mode == "weighed" {
		pod.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
		return pod
	}
	name := claimOfPod(i, mode)
	if _, ok := c.ResourceClaims.Get("default", name); !ok {
		c.ResourceClaims.Set(benchClaim(name, mode))
	}
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "resource", ResourceClaimName: &name}}
	pod.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "resource"}}
	return pod
}
