// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// heldDevice returns a cluster with a node n and a device held by the pod holder of priority 5, and
// a pending pod that needs a device.
func heldDevice(t *testing.T, priority int32) (*cluster.Cluster, *cluster.Pod) {
	t.Helper()
	c := cluster.New()
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	c.ResourceSlices.Set(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "d", NodeName: new("n"), Pool: resourcev1.ResourcePool{Name: "n", ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "gpu-0"}}}})
	pod := func(name string, priority int32) *v1.Pod {
		c.ResourceClaims.Set(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r",
				Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}}})
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
			Spec: v1.PodSpec{Priority: &priority, ResourceClaims: []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &name}}}}
	}
	d, err := NewDynamicResources(nil)
	if err != nil {
		t.Fatal(err)
	}
	holder := c.Pending(pod("holder", 5))
	if _, err := d.Reserve(c, holder, c.Node("n")); err != nil {
		t.Fatal(err)
	}
	c.Place(holder, c.Node("n"))
	return c, c.Pending(pod("waiting", priority))
}

// TestMessageNamesWhyADeviceStays verifies that the details of a rejection name the user of a
// device that preemption cannot release, and the reason.
func TestMessageNamesWhyADeviceStays(t *testing.T) {
	for priority, want := range map[int32]string{
		5: "used by default/holder (claim holder: preemption does not release d/n/gpu-0, since holder has priority 5 (this pod: 5))",
		6: "used by default/holder (claim holder)",
	} {
		c, p := heldDevice(t, priority)
		d := &DynamicResources{preempts: true}
		if text := d.Detail(c, p)(c.Node("n")); !strings.HasSuffix(text, want) {
			t.Errorf("priority %d: %q, want %q", priority, text, want)
		}
	}
}

// TestDevicesOfRemovedPodsAreReleased verifies that only with the gate, and only in an experiment,
// the removal of a pod releases its claim; a claim of a pending pod stays.
func TestDevicesOfRemovedPodsAreReleased(t *testing.T) {
	for _, row := range []struct {
		name                         string
		gate, experiment, waits, fit bool
	}{
		{"gate off", false, true, false, false}, {"no experiment", true, false, false, false},
		{"removed", true, true, false, true}, {"pending", true, true, true, false},
	} {
		c, p := heldDevice(t, 6)
		c.RemovePod("holder")
		c.IsPending = func(uid types.UID) bool { return row.waits && uid == "holder" }
		d, err := NewDynamicResources(nil)
		if err != nil {
			t.Fatal(err)
		}
		d.preempts = row.gate
		judge := d.Filter(c, p)
		if row.experiment {
			defer c.ReleaseClaims()()
		}
		if rejection := judge.Node(c.Node("n")); (rejection == nil) != row.fit || rejection != nil && rejection.Unresolvable == row.gate {
			t.Errorf("%s: %+v", row.name, rejection)
		}
	}
}
