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
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/config"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// fullDevices returns a core with 1,213 nodes in 151 racks. All devices are held by less important
// pods. In every fourth rack they have the form gang; elsewhere, they are divided into halves or of
// another form. The function addGang adds a gang of eight pods confined to one rack, each with a
// claim for a device of the form gang, and returns its victims.
func fullDevices(tb testing.TB) (addGang func(name string) (victims int, took time.Duration)) {
	const nodes, racks = 1213, 151
	c, err := config.Default(config.Options{PreemptDevices: true})
	if err != nil {
		tb.Fatal(err)
	}
	core, err := New(Options{Profiles: []Profile{{Profile: c.Profiles[0]}}, Groups: groups.Gates{Generic: true, Topology: true, Composite: true}})
	if err != nil {
		tb.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	see := func(kind Kind, o metav1.Object) {
		core.Step(begin, Seen{kind, o})
	}
	forms := []string{"own", "shared", "whole", "gang"}
	for _, form := range append(forms, "half") {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: form}}
		class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.driver == "full.example.com" && device.attributes["full.example.com"].form == %q`, form)}}}
		see(DeviceClasses, class)
	}
	needs := func(name, form string, priority int32) (*v1.Pod, *resourcev1.ResourceClaim) {
		p := aPod(name, "10m")
		p.Spec.Priority = &priority
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: &name}}
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)}}
		claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "one", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: form, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}
		return p, claim
	}
	run := func(node, name, form, device string) {
		p, claim := needs(name, form, 0)
		p.Spec.NodeName = node
		claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Request: "one", Driver: "full.example.com", Pool: node, Device: device}}}}
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: p.Name, UID: p.UID}}
		see(ResourceClaims, claim)
		see(Pods, p)
	}
	for i := range nodes {
		n := aNode(fmt.Sprint("n", i), "16")
		rack := i % racks
		n.Labels["rack"] = fmt.Sprint("r", rack)
		see(Nodes, n)
		form := forms[rack%len(forms)]
		slice := func(name string, slices int64) *resourcev1.ResourceSlice {
			s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: n.Name + name}}
			s.Spec = resourcev1.ResourceSliceSpec{Driver: "full.example.com", NodeName: &n.Name,
				Pool: resourcev1.ResourcePool{Name: n.Name, Generation: 1, ResourceSliceCount: slices}}
			return s
		}
		device := func(name, form, memory string) resourcev1.Device {
			d := resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"form": {StringValue: &form}}}
			if memory != "" {
				d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "card",
					Counters: map[string]resourcev1.Counter{"memory": {Value: resource.MustParse(memory)}}}}
			}
			return d
		}
		if form != "whole" {
			s := slice("", 1)
			s.Spec.Devices = []resourcev1.Device{device("gpu", form, "")}
			see(ResourceSlices, s)
			run(n.Name, "low-"+n.Name, form, "gpu")
			continue
		}
		counters, devices := slice("-counters", 2), slice("", 2)
		counters.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "card",
			Counters: map[string]resourcev1.Counter{"memory": {Value: resource.MustParse("40Gi")}}}}
		devices.Spec.Devices = []resourcev1.Device{device("gpu", "whole", "40Gi"), device("half-0", "half", "20Gi"), device("half-1", "half", "20Gi")}
		see(ResourceSlices, counters)
		see(ResourceSlices, devices)
		run(n.Name, "low-"+n.Name+"-0", "half", "half-0")
		run(n.Name, "low-"+n.Name+"-1", "half", "half-1")
	}
	core.Step(begin, Tick{})

	return func(name string) (victims int, took time.Duration) {
		g := gangOf(name, 8)
		g.Spec.SchedulingConstraints, g.Spec.Priority = oneOf("rack"), new(int32(1000))
		for i := range 8 {
			p, claim := needs(fmt.Sprintf("%s-%d", name, i), "gang", 1000)
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &g.Name}
			see(ResourceClaims, claim)
			see(Pods, p)
		}
		see(PodGroups, g)
		began := time.Now()
		actions := core.Step(begin, Tick{})
		took = time.Since(began)
		for _, a := range actions {
			if _, ok := a.(Remove); ok {
				victims++
			}
		}
		return victims, took
	}
}

// TestGangForDevicesInOneOfManyRacks verifies that the first attempts of gangs find victims,
// although most racks have no device that the gang can use.
func TestGangForDevicesInOneOfManyRacks(t *testing.T) {
	addGang := fullDevices(t)
	for _, name := range []string{"first", "second"} {
		if victims, _ := addGang(name); victims != 8 {
			t.Errorf("%d victims for the %s gang, want 8", victims, name)
		}
	}
}

// BenchmarkGangForDevices measures the first attempts of gangs in the world of fullDevices.
func BenchmarkGangForDevices(b *testing.B) {
	addGang := fullDevices(b)
	var total, worst time.Duration
	gangs := 0
	for b.Loop() {
		gangs++
		victims, took := addGang(fmt.Sprint("g", gangs))
		if victims != 8 {
			b.Fatalf("%d victims for gang %d", victims, gangs)
		}
		total, worst = total+took, max(worst, took)
	}
	b.ReportMetric(float64(total.Microseconds())/1000/float64(gangs), "ms/gang")
	b.ReportMetric(float64(worst.Microseconds())/1000, "ms/worst")
}
