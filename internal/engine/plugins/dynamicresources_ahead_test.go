// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestASharedDeviceThatBecomesExclusiveIsTaken verifies that a device is not allocated to a claim
// while another claim holds a share of it, regardless of the order of changes by the driver and to
// the claims (kubernetes#140798).
func TestASharedDeviceThatBecomesExclusiveIsTaken(t *testing.T) {
	c, d := cluster.New(), newDynamicResources(t)
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	publish := func(generation int64, shared bool) {
		c.ResourceSlices.Set(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: new("a"), Pool: resourcev1.ResourcePool{Name: "a", ResourceSliceCount: 1, Generation: generation},
			Devices: []resourcev1.Device{{Name: "gpu-0", AllowMultipleAllocations: &shared}},
		}})
	}
	share := func(name string) *resourcev1.ResourceClaim {
		claim := claimOfOne(name)
		claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: "gpu.example.com", Pool: "a", Device: "gpu-0", ShareID: new(types.UID(name))},
		}}}
		return claim
	}
	c.ResourceClaims.Set(claimOfOne("c"))
	p := waiting(t, c, "kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: r, resourceClaimName: c}]}")
	want := func(when, want string) {
		t.Helper()
		if lines := answers(c, d, p, 1); lines[0] != want {
			t.Errorf("%s: got %q, want %q", when, lines[0], want)
		}
	}

	const none = "cannot allocate all claims"
	publish(1, true)
	c.ResourceClaims.Set(share("one"))
	want("shared", "ok")
	publish(2, false)
	want("exclusive while it is shared", none)
	c.ResourceClaims.Set(share("two"))
	c.ResourceClaims.Delete("default", "one")
	want("one of two shares is gone", none)
	publish(3, true)
	want("shared again", "ok")
	publish(4, false)
	want("exclusive again", none)
	c.ResourceClaims.Delete("default", "two")
	want("no share is left", "ok")
	c.ResourceClaims.Set(share("three"))
	want("a share that was observed late", none)
}

// TestAllDevicesOfAnUnreadyPoolConcernOneNode verifies that a node with an incomplete or invalid
// pool is rejected, and the remaining nodes are still tried (kubernetes#141898).
func TestAllDevicesOfAnUnreadyPoolConcernOneNode(t *testing.T) {
	c, d := cluster.New(), newDynamicResources(t)
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	for i, node := range []string{"a", "b", "c"} {
		c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		slice := sliceOfUnlike(node, 2)
		switch i {
		case 0:
			slice.Spec.Pool.ResourceSliceCount = 2
		case 1:
			slice.Spec.Devices[1].Name = slice.Spec.Devices[0].Name
		}
		c.ResourceSlices.Set(slice)
	}
	claim := claimOfOne("c")
	claim.Spec.Devices.Requests[0].Exactly.AllocationMode, claim.Spec.Devices.Requests[0].Exactly.Count = resourcev1.DeviceAllocationModeAll, 0
	c.ResourceClaims.Set(claim)
	p := waiting(t, c, "kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: r, resourceClaimName: c}]}")
	const all = "claim default/c, request one: asks for all devices, but resource pool gpu.example.com/"
	if lines, want := answers(c, d, p, 3), []string{all + "a is currently being updated", all + "b is currently invalid", "ok"}; !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q", lines, want)
	}
}
