// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestASimpleClaimIsDecidedAtOnceInALargeCluster verifies that consecutive attempts continue
// without a back-off if checking the devices of 3,000 different nodes exceeds the limit of an
// attempt. Pods of other tenants are tried in between.
func TestASimpleClaimIsDecidedAtOnceInALargeCluster(t *testing.T) {
	const many = 3000
	all := []Kind{Nodes, Pods, ResourceSlices, ResourceClaims, DeviceClasses}
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	tell := func(now time.Time, e Event) []Action { return core.Step(now, e) }
	tell(begin, Follows{all})
	tell(begin, Led{})
	for _, kind := range all {
		tell(begin, Listing{kind})
	}

	tell(begin, Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}})
	for i := range many {
		name := fmt.Sprint("node-", i)
		tell(begin, Seen{Nodes, aNode(name, "8")})
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1}}}
		for d := range 5 {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
				Name: fmt.Sprint("gpu-", d), AllowMultipleAllocations: new(true),
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"serial": {IntValue: new(int64(i))}},
				Capacity:   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"milli": {Value: resource.MustParse("1000")}},
			})
		}
		tell(begin, Seen{ResourceSlices, slice})
	}
	tell(begin, Seen{ResourceClaims, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "share", UID: "share"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "one", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"milli": resource.MustParse("190")}},
			},
		}}}},
	}})
	for _, kind := range all {
		tell(begin, Listed{kind})
	}

	claiming, other := aPod("claiming", "100m"), aPod("other", "100m")
	claiming.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new("share")}}
	tell(begin, Seen{Pods, claiming})
	tell(begin.Add(time.Millisecond), Seen{Pods, other})

	want := []string{"bind default/other to ", "write claims of default/claiming #2: "}
	var acted []string
	for range 20 {
		for _, a := range tell(begin.Add(time.Second), Tick{}) {
			if _, ready := a.(Ready); !ready {
				acted = append(acted, a.String())
			}
		}
	}
	if !slices.EqualFunc(acted, want, strings.HasPrefix) {
		t.Errorf("within one second: %q, want %q...", acted, want)
	}
}
