// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	gpuDriver = "gpu.example.com"
	nicDriver = "nic.example.com"
	fpga      = v1.ResourceName("example.com/fpga") // provided by devices on nodes that do not list it in their capacity
)

// deviceID identifies a device with free capacity.
type deviceID struct {
	driver, pool, device string
	node                 string // empty if the device is not local to one node
	divisible            bool   // claims may use shares of the device
}

// deviceGenerator draws devices and claims for them. free lists the devices that can still be
// allocated.
type deviceGenerator struct {
	*dice
	w     *World
	terms *termGenerator

	free         []deviceID
	deviceClaims map[string][]string // names by namespace
	counted      v1.ResourceName     // extended resource provided by devices, or empty
}

func (g *deviceGenerator) addDevices() {
	if g.leaning["devices"] == 0 {
		return
	}
	g.deviceClasses()
	for _, node := range drawSome(g, 0.7, g.w.Nodes...) {
		spec := resourcev1.ResourceSliceSpec{NodeName: ptr.To(node.Name)}
		g.addSlice(spec, pickOne(g, gpuDriver, gpuDriver, nicDriver), node.Name)
	}

	if g.withChance(0.4) {
		g.addSlice(resourcev1.ResourceSliceSpec{NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn,
				Values: []string{"z1"}}}}}}}, nicDriver, "zonal")
	}

	if g.withChance(0.3) {
		g.addSlice(resourcev1.ResourceSliceSpec{AllNodes: ptr.To(true)}, nicDriver, "everywhere")
	}
	if g.withChance(0.15) {
		g.addSlice(resourcev1.ResourceSliceSpec{PerDeviceNodeSelection: ptr.To(true)}, gpuDriver, "fabric")
	}

	for range g.drawBetween(1, 6) {
		g.deviceClaim(pickOne(g, "default", "default", "team-a"), g.nextName("device-claim"))
	}
}

// taintRules draws DeviceTaintRules for any devices.
func (g *deviceGenerator) taintRules() {
	if g.leaning["devices"] == 0 || !g.withChance(0.4) {
		return
	}
	for range g.drawBetween(1, 4) {
		rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: g.nextName("rule")}}
		rule.Spec.Taint = resourcev1.DeviceTaint{Key: pickOne(g, "broken", "recalled"), Value: pickOne(g, "", "a"), Effect: pickOne(g,
			resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNone)}
		if g.withChance(0.9) {
			rule.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{
				Driver: pickOne(g, nil, ptr.To(gpuDriver), ptr.To(nicDriver)),
				Pool:   pickOne(g, nil, nil, ptr.To("zonal"), ptr.To(pickOne(g, g.w.Nodes...).Name)),
				Device: pickOne(g, nil, nil, ptr.To("dev-0"), ptr.To("dev-1")),
			}
		}
		g.w.addObject(rule)
	}
}

func (g *deviceGenerator) deviceClasses() {
	cel := func(expression string) []resourcev1.DeviceSelector {
		return []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
	}
	for name, selectors := range eachPair("gpu", cel(`device.driver == "gpu.example.com"`), "big",
		cel(`device.attributes["gpu.example.com"].size == "big"`), "nic", cel(`device.driver == "nic.example.com"`), "any", nil) {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: g.nextTime()},
			Spec: resourcev1.DeviceClassSpec{Selectors: selectors}}
		if name == "gpu" && g.withChance(0.6) {
			g.counted = pickOne(g, fpga, fpga, gpu)
			class.Spec.ExtendedResourceName = ptr.To(string(g.counted))
		}
		if g.withChance(0.93) {
			g.w.addObject(class)
		}
	}
}

// eachPair iterates over a list in which names and selectors alternate.
func eachPair(list ...any) func(func(string, []resourcev1.DeviceSelector) bool) {
	return func(yield func(string, []resourcev1.DeviceSelector) bool) {
		for i := 0; i < len(list); i += 2 {
			selectors, _ := list[i+1].([]resourcev1.DeviceSelector)
			if !yield(list[i].(string), selectors) {
				return
			}
		}
	}
}

func (g *deviceGenerator) addSlice(spec resourcev1.ResourceSliceSpec, driver, pool string) {
	spec.Driver, spec.Pool = driver, resourcev1.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1}
	if g.withChance(0.05) {
		spec.Pool.ResourceSliceCount = 2 // the other slice is not published yet
	}
	counted := g.withChance(0.2)
	if counted {
		spec.Pool.ResourceSliceCount++
		counters := *spec.DeepCopy()
		counters.SharedCounters = g.counterSets()
		g.w.addObject(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: g.nextName("slice")}, Spec: counters})
	}
	if g.withChance(0.05) { // an outdated slice that the driver is about to delete
		old := *spec.DeepCopy()
		old.Pool.Generation, old.Devices = 0, []resourcev1.Device{g.placedDevice(&old, g.drawDevice(driver, "dev-old"))}
		g.w.addObject(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: g.nextName("slice")}, Spec: old})
	}
	for i := range g.drawBetween(0, 4) {
		d := g.placedDevice(&spec, g.drawDevice(driver, fmt.Sprintf("dev-%d", i)))
		if counted && g.withChance(0.8) {
			d.ConsumesCounters = g.drawConsumption()
		}
		spec.Devices = append(spec.Devices, d)
		node := ptr.Deref(spec.NodeName, ptr.Deref(d.NodeName, ""))
		g.free = append(g.free, deviceID{driver, pool, d.Name, node, d.AllowMultipleAllocations != nil})
	}
	g.w.addObject(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: g.nextName("slice")}, Spec: spec})
}

// placedDevice sets the nodes that can use the device, if the slice does not set them for all of
// its devices.
func (g *deviceGenerator) placedDevice(spec *resourcev1.ResourceSliceSpec, d resourcev1.Device) resourcev1.Device {
	if spec.PerDeviceNodeSelection == nil {
		return d
	}
	switch g.IntN(3) {
	case 0:
		d.NodeName = ptr.To(pickOne(g, g.w.Nodes...).Name)
	case 1:
		d.NodeSelector = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{g.terms.nodeRequirement()},
		}}}
	default:
		d.AllNodes = ptr.To(true)
	}
	return d
}

// counterSets draws the shared counters of a pool whose devices are parts of larger devices.
func (g *deviceGenerator) counterSets() []resourcev1.CounterSet {
	var sets []resourcev1.CounterSet
	for _, name := range []string{"card-0", "card-1"} {
		sets = append(sets, resourcev1.CounterSet{Name: name, Counters: map[string]resourcev1.Counter{
			"memory": {Value: resource.MustParse(pickOne(g, "20Gi", "40Gi"))},
			"slots":  {Value: resource.MustParse(pickOne(g, "1", "2", "4"))},
		}})
	}
	return sets
}

func (g *deviceGenerator) drawConsumption() []resourcev1.DeviceCounterConsumption {
	return []resourcev1.DeviceCounterConsumption{{CounterSet: pickOne(g, "card-0", "card-0", "card-1"),
		Counters: map[string]resourcev1.Counter{
			"memory": {Value: resource.MustParse(pickOne(g, "5Gi", "10Gi", "20Gi", "40Gi"))},
			"slots":  {Value: resource.MustParse(pickOne(g, "1", "1", "2"))},
		}}}
}

func (g *deviceGenerator) drawDevice(driver, name string) resourcev1.Device {
	d := resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		"numa": {IntValue: ptr.To(int64(g.IntN(2)))}, "linked": {BoolValue: ptr.To(g.withChance(0.5))},
		"firmware": {VersionValue: ptr.To(pickOne(g, "1.2.3", "2.0.0"))},
	}}

	if g.withChance(0.9) {
		d.Attributes["size"] = resourcev1.DeviceAttribute{StringValue: ptr.To(pickOne(g, "big", "small"))}
	}
	if g.withChance(0.15) {
		d.Taints = []resourcev1.DeviceTaint{{Key: "broken", Value: pickOne(g, "", "a"),
			Effect: pickOne(g, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNoExecute,
				resourcev1.DeviceTaintEffectNone)}}
	}

	if g.withChance(0.3) {
		d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
			"memory": {Value: resource.MustParse(pickOne(g, "10Gi", "40Gi"))},
		}
		if g.withChance(0.5) {
			d.AllowMultipleAllocations = ptr.To(true)
			d.Capacity["memory"] = resourcev1.DeviceCapacity{Value: d.Capacity["memory"].Value, RequestPolicy: g.requestPolicy()}
		}
	}

	if g.withChance(0.1) {
		d.BindsToNode = ptr.To(true)
		d.BindingConditions, d.BindingFailureConditions = []string{"attached"}, []string{"failed"}
	}
	return d
}

// requestPolicy draws the policy by which requests for a capacity are rounded and restricted.
func (g *deviceGenerator) requestPolicy() *resourcev1.CapacityRequestPolicy {
	amount := func(text string) *resource.Quantity { return ptr.To(resource.MustParse(text)) }
	switch g.IntN(4) {
	case 0:
		return &resourcev1.CapacityRequestPolicy{Default: amount("5Gi"), ValidValues: []resource.Quantity{*amount("5Gi"), *amount("10Gi")}}
	case 1:
		return &resourcev1.CapacityRequestPolicy{Default: amount("4Gi"), ValidRange: &resourcev1.CapacityRequestPolicyRange{
			Min: amount("2Gi"), Max: pickOne(g, nil, amount("10Gi")), Step: pickOne(g, nil, amount("2Gi")),
		}}
	case 2:
		return &resourcev1.CapacityRequestPolicy{Default: amount("10Gi")}
	}
	return nil
}
