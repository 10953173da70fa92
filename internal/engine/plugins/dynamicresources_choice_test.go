// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// choosingProfile enables DynamicResources, plus Fragmentation if a workload is given.
func choosingProfile(t *testing.T, comes ...int64) *DynamicResources {
	t.Helper()
	at := map[Point][]string{Filters: nil, Reserve: {"DynamicResources"}}
	args := map[string]any{}
	if len(comes) > 0 {
		at[Reserve] = append(at[Reserve], "Fragmentation")
		of := &FragmentationArgs{Resource: "example.com/gpu", Unit: 1000}
		for _, amount := range comes {
			of.Tasks = append(of.Tasks, FragmentationTask{Requests: v1.ResourceList{"example.com/gpu": *resource.NewQuantity(amount, resource.DecimalSI)}})
		}
		args["Fragmentation"] = of
	}
	p, err := NewProfile("test", at, nil, args)
	if err != nil {
		t.Fatal(err)
	}
	return p.made["DynamicResources"].(*DynamicResources)
}

// reserveClaim allocates devices of the node to a pod with the claim, and returns their names.
func reserveClaim(t *testing.T, c *cluster.Cluster, d *DynamicResources, claim *resourcev1.ResourceClaim) string {
	t.Helper()
	c.ResourceClaims.Set(claim)
	p := waiting(t, c, fmt.Sprintf("kind: Pod\nmetadata: {name: %[1]s}\nspec: {resourceClaims: [{name: r, resourceClaimName: %[1]s}]}", claim.Name))
	if r := d.Filter(c, p).Node(c.Node("a")); r != nil {
		t.Fatalf("%s: %v", claim.Name, r.Reasons)
	}
	if _, err := d.Reserve(c, p, c.Node("a")); err != nil {
		t.Fatal(err)
	}
	now, _ := c.ResourceClaims.Get("default", claim.Name)
	var names []string
	for _, result := range now.Status.Allocation.Devices.Results {
		names = append(names, result.Device)
	}
	return strings.Join(names, " ")
}

func deviceCluster(t *testing.T, slices ...resourcev1.ResourceSliceSpec) *cluster.Cluster {
	c, node := cluster.New(), "a"
	load(t, c, "node a")
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	for i, spec := range slices {
		spec.Driver, spec.NodeName, spec.Pool = "gpu.example.com", &node, resourcev1.ResourcePool{Name: node, ResourceSliceCount: int64(len(slices))}
		c.ResourceSlices.Set(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("a-%d", i)}, Spec: spec})
	}
	return c
}

// TestSharesFollowFragmentation verifies that a share of 300 is allocated on the device where it
// leaves no remainder, so that 400 stays free for future pods. Without the plugin the first device
// that fits is taken, as in upstream.
func TestSharesFollowFragmentation(t *testing.T) {
	for _, test := range []struct {
		comes []int64
		want  string
	}{{nil, "gpu-0"}, {[]int64{400, 600, 700}, "gpu-1"}} {
		spec := resourcev1.ResourceSliceSpec{}
		for i := range 2 {
			spec.Devices = append(spec.Devices, resourcev1.Device{
				Name: fmt.Sprintf("gpu-%d", i), AllowMultipleAllocations: new(true),
				Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"milli": {Value: resource.MustParse("1000")}},
			})
		}
		c, d := deviceCluster(t, spec), choosingProfile(t, test.comes...)
		got := ""
		for i, amount := range []string{"600", "700", "300"} {
			claim := claimOfOne(fmt.Sprintf("c%d", i))
			claim.Spec.Devices.Requests[0].Exactly.Capacity = &resourcev1.CapacityRequirements{
				Requests: map[resourcev1.QualifiedName]resource.Quantity{"milli": resource.MustParse(amount)}}
			got = reserveClaim(t, c, d, claim)
		}
		if got != test.want {
			t.Errorf("with %v to come, 300 is on %s, want %s", test.comes, got, test.want)
		}
	}
}

// TestSeveralSharesFollowFragmentation verifies that two shares of 300 are allocated on devices
// with 300 free, so that a whole GPU stays free for future pods.
func TestSeveralSharesFollowFragmentation(t *testing.T) {
	for _, test := range []struct {
		comes []int64
		want  string
	}{{nil, "gpu-0 gpu-1"}, {[]int64{300, 1000}, "gpu-1 gpu-2"}} {
		spec := resourcev1.ResourceSliceSpec{}
		for i := range 3 {
			spec.Devices = append(spec.Devices, resourcev1.Device{
				Name: fmt.Sprintf("gpu-%d", i), AllowMultipleAllocations: new(true),
				Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"milli": {Value: resource.MustParse("1000")}},
			})
		}
		c, d := deviceCluster(t, spec), choosingProfile(t, test.comes...)
		for i, device := range []string{"gpu-1", "gpu-2"} {
			taken := claimOfOne(device)
			taken.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
				Request: "one", Driver: "gpu.example.com", Pool: "a", Device: device, ShareID: new(types.UID(fmt.Sprint(i))),
				ConsumedCapacity: map[resourcev1.QualifiedName]resource.Quantity{"milli": resource.MustParse("700")}}}}}
			c.ResourceClaims.Set(taken)
		}

		claim := claimOfOne("two")
		claim.Spec.Devices.Requests[0].Exactly.Count = 2
		claim.Spec.Devices.Requests[0].Exactly.Capacity = &resourcev1.CapacityRequirements{
			Requests: map[resourcev1.QualifiedName]resource.Quantity{"milli": resource.MustParse("300")}}
		if got := reserveClaim(t, c, d, claim); got != test.want {
			t.Errorf("with %v to come, two shares of 300 are on %s, want %s", test.comes, got, test.want)
		}
	}
}

// TestPartitionsFollowFragmentation verifies that half a GPU is allocated on a GPU with the other
// half taken, and that two halves leave the fewest GPUs partly used.
func TestPartitionsFollowFragmentation(t *testing.T) {
	for _, test := range []struct {
		comes []int64
		count int64
		want  string
	}{
		{nil, 1, "gpu-0-b"}, {[]int64{500, 1000}, 1, "gpu-1-b"},
		{nil, 2, "gpu-0-b gpu-1-a"}, {[]int64{500, 1000}, 2, "gpu-1-b gpu-0-a"},
	} {
		counters := func(n int64) map[string]resourcev1.Counter {
			return map[string]resourcev1.Counter{"memory": {Value: *resource.NewQuantity(n, resource.DecimalSI)}}
		}
		sets, devices := resourcev1.ResourceSliceSpec{}, resourcev1.ResourceSliceSpec{}
		for i := range 2 {
			set := fmt.Sprintf("gpu-%d", i)
			sets.SharedCounters = append(sets.SharedCounters, resourcev1.CounterSet{Name: set, Counters: counters(80)})
			for _, half := range []string{"a", "b"} {
				devices.Devices = append(devices.Devices, resourcev1.Device{Name: set + "-" + half,
					ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: set, Counters: counters(40)}}})
			}
		}
		c, d := deviceCluster(t, sets, devices), choosingProfile(t, test.comes...)
		first := claimOfOne("first")
		device := "gpu-1-a"
		if len(test.comes) == 0 {
			device = "gpu-0-a"
		}
		first.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "one", Driver: "gpu.example.com", Pool: "a", Device: device}}}}
		c.ResourceClaims.Set(first)
		second := claimOfOne("second")
		second.Spec.Devices.Requests[0].Exactly.Count = test.count
		if got := reserveClaim(t, c, d, second); got != test.want {
			t.Errorf("with %v to come, %d partitions are %s, want %s", test.comes, test.count, got, test.want)
		}
	}
}
