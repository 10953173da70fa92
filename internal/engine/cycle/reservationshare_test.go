// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestTheShareCountsDevices verifies that reservations stay within their share of extended
// resources, and of the devices of claims. Two gangs wait for a quarter of the 32 devices each, on
// four nodes with pods that use all devices.
func TestTheShareCountsDevices(t *testing.T) {
	for _, claims := range []bool{false, true} {
		for share, want := range map[float64]int{0.2: 0, 0.25: 1, 0.4: 1, 0.5: 2} {
			core := devicesInUse(t, claims, share)
			for range 2 { // one for each gang
				core.Step(begin, Tick{})
			}
			if held := len(core.View().Reserved); held != want {
				t.Errorf("claims %t: %d reservations with a share of %v, want %d", claims, held, share, want)
			}
		}
	}
}

func devicesInUse(t *testing.T, claims bool, share float64) *Core {
	t.Helper()
	c, err := config.Default(config.Options{PreemptDevices: true})
	if err != nil {
		t.Fatal(err)
	}
	profile := c.Profiles[0]
	profile.Reservations = plugins.Reservations{For: time.Hour, Share: share}
	core, err := New(Options{Profiles: []Profile{{Profile: profile}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}})

	create := func(name, node, group string, count int64) {
		p := aPod(name, "1")
		if p.Spec.NodeName = node; group != "" {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
		}
		if !claims {
			p.Spec.Containers[0].Resources.Requests[device] = *resource.NewQuantity(count, resource.DecimalSI)
			core.Step(begin, Seen{Pods, p})
			return
		}
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}}}
		if node != "" {
			claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
			claim.Status.Allocation = &resourcev1.AllocationResult{}
			results := &claim.Status.Allocation.Devices.Results
			for i := range count {
				*results = append(*results, resourcev1.DeviceRequestAllocationResult{
					Request: "r", Driver: "gpu.example.com", Pool: node, Device: fmt.Sprint("gpu-", i)})
			}
		}
		core.Step(begin, Seen{ResourceClaims, claim})
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c", ResourceClaimName: &name}}
		core.Step(begin, Seen{Pods, p})
	}
	for i := range 4 {
		n := aNode(fmt.Sprint("n", i), "96")
		if !claims {
			n.Status.Allocatable[device] = resource.MustParse("8")
		}
		core.Step(begin, Seen{Nodes, n})
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &n.Name, Pool: resourcev1.ResourcePool{Name: n.Name, ResourceSliceCount: 1}}}
		for i := range 8 {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", i)})
		}
		core.Step(begin, Seen{ResourceSlices, slice})
		create(fmt.Sprint("there", i), n.Name, "", 8)
	}
	for _, name := range []string{"g", "h"} {
		core.Step(begin, Seen{PodGroups, gangOf(name, 2)})
		for i := range 2 {
			create(fmt.Sprint(name, i), "", name, 4)
		}
	}
	core.Step(begin, Led{})
	return core
}
