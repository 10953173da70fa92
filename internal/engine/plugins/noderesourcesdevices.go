// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"errors"
	"maps"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// classesByResource returns the resources provided by a DeviceClass, or nil if there are no
// classes; the nil map yields false for all.
func classesByResource(c *cluster.Cluster, names []v1.ResourceName) map[v1.ResourceName]bool {
	if c.DeviceClasses.Len() == 0 {
		return nil
	}
	classes, classOf := map[v1.ResourceName]bool{}, classesOf(c, len(names))
	for _, name := range names {
		if classOf(name) != nil {
			classes[name] = true
		}
	}
	return classes
}

// deviceStock counts the devices behind extended resources, for the scores of NodeResourcesFit and
// NodeResourcesBalancedAllocation. It caches the devices selected from each slice, and recounts a
// node's devices only after changes of the devices or of the claims holding them. It keeps a
// separate index, because these plugins also work without DynamicResources.
type deviceStock struct {
	mutex    sync.Mutex
	index    deviceIndex
	classes  uint64 // the version of the device classes followed so far
	slices   uint64 // the version of the slices followed so far
	selected map[*resourcev1.DeviceClass]map[*resourcev1.ResourceSlice][]selectedDevice
	shared   []*resourcev1.ResourceSlice // slices not tied to a single node
	known    map[stockKey]stocked
}

// selectedDevice is a device of a slice and the result of a class's selectors. err reports
// selectors that could not be evaluated.
type selectedDevice struct {
	id      structured.DeviceID
	matches bool
	err     error
}

// stockKey identifies a count of the devices of a class on a node.
type stockKey struct {
	class *resourcev1.DeviceClass
	node  individual
}

// stocked is the number of devices of a class on a node. at is the value of the index's counter
// when they were counted. The number is outdated if own, or a device shared by nodes, has changed
// since.
type stocked struct {
	amounts
	own *nodeDevices
	at  uint64
}

// deviceCounts counts, per node, the devices behind extended resources, for the scores of the
// resource plugins. Pods' requests for such a resource do not count, because their claims hold the
// devices. classes are the classes of one pod's resources.
type deviceCounts struct {
	stock   *deviceStock
	classes map[v1.ResourceName]*resourcev1.DeviceClass
}

// deviceExpressions caches the compiled selectors of the few classes that provide a resource. All
// plugins and profiles share it, because compilation depends only on the expression's text.
var deviceExpressions = sync.OnceValue(func() *expressionSet { return newExpressionSet(nil) })

// countsFor prepares the counts for a pod. It returns nil, the common case, if no class provides a
// resource weighed by the scorer and requested by the pod.
func (s *deviceStock) countsFor(c *cluster.Cluster, specs resourceSpecs, wanted []int64) *deviceCounts {
	if c.DeviceClasses.Len() == 0 {
		return nil
	}
	var counts *deviceCounts
	for i := range specs {
		name := v1.ResourceName(specs[i].Name)
		if wanted[i] == 0 || !mayBeDevice(name) {
			continue
		}
		class := deviceClassOf(c, name)
		if class == nil {
			continue
		}
		// The index is updated only here, to spare pods without devices its cost.
		if counts == nil {
			s.followCluster(c)
			counts = &deviceCounts{stock: s, classes: map[v1.ResourceName]*resourcev1.DeviceClass{}}
		}
		counts.classes[name] = class
	}

	return counts
}

// followCluster updates the stock before nodes are scored. Selections are keyed by class and slice
// pointers, which change with their contents, so only unused entries must be dropped.
func (s *deviceStock) followCluster(c *cluster.Cluster) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.index.c != c || s.classes != c.DeviceClasses.Version {
		s.selected, s.known = map[*resourcev1.DeviceClass]map[*resourcev1.ResourceSlice][]selectedDevice{}, map[stockKey]stocked{}
	}
	// Compare the versions before the index is updated, which makes them equal.
	anew := s.index.c != c || s.slices != c.ResourceSlices.Version
	s.index.followCluster(c)
	s.classes, s.slices = c.DeviceClasses.Version, c.ResourceSlices.Version
	if anew {
		s.shared = s.shared[:0]
		for _, slice := range s.index.sliceOf {
			if !isLocal(slice) {
				s.shared = append(s.shared, slice)
			}
		}
		for _, of := range s.selected {
			maps.DeleteFunc(of, func(slice *resourcev1.ResourceSlice, _ []selectedDevice) bool {
				return s.index.sliceOf[slice.Name] != slice
			})
		}
	}
	if len(s.known) > 4*len(c.Nodes)+64 { // outdated nodes or labels
		clear(s.known)
	}
}

// selectedOf evaluates the class on the devices of a slice.
func (s *deviceStock) selectedOf(class *resourcev1.DeviceClass, slice *resourcev1.ResourceSlice) []selectedDevice {
	of := s.selected[class]
	if of == nil {
		of = map[*resourcev1.ResourceSlice][]selectedDevice{}
		s.selected[class] = of
	}
	devices, known := of[slice]
	if !known {
		devices = make([]selectedDevice, len(slice.Spec.Devices))
		for i := range slice.Spec.Devices {
			device, d := &slice.Spec.Devices[i], &devices[i]
			d.id = structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, device.Name)
			d.matches, d.err = classSelects(class, slice.Spec.Driver, device)
		}
		of[slice] = devices
	}
	return devices
}

// countOn counts the devices usable by the node: allocatable counts all such devices, allocated the
// devices held by claims. As in upstream, if a selector cannot be evaluated on a device, the
// resource does not count in the score of nodes with this device. The mutex serializes the counts.
func (d *deviceCounts) countOn(n *cluster.Node, name v1.ResourceName) amounts {
	class := d.classes[name]
	if class == nil {
		return amounts{}
	}
	s := d.stock
	s.mutex.Lock()
	defer s.mutex.Unlock()
	key := stockKey{class, individualOf(n)}
	known, ok := s.known[key]
	if !ok || known.at < known.own.changed || known.at < s.index.sharedAt {
		// now is the index's counter: later changes have a higher one.
		known = stocked{s.countDevices(n, class), s.index.devicesOf(n.Name), s.index.now}
		s.known[key] = known
	}
	return known.amounts
}

// countDevices counts the devices of a class usable by the node, both local and shared.
func (s *deviceStock) countDevices(n *cluster.Node, class *resourcev1.DeviceClass) (a amounts) {
	for _, slice := range s.index.slicesFor(n.Name) {
		if isLocal(slice) && *slice.Spec.NodeName == n.Name && !s.addSlice(&a, n, class, slice) {
			return amounts{}
		}
	}
	for _, slice := range s.shared {
		if !s.addSlice(&a, n, class, slice) {
			return amounts{}
		}
	}
	return a
}

// addSlice adds the devices of a slice to the count. It returns false if a selector cannot be
// evaluated.
func (s *deviceStock) addSlice(a *amounts, n *cluster.Node, class *resourcev1.DeviceClass, slice *resourcev1.ResourceSlice) bool {
	// Without per-device selection the slice has one node selection for all of its devices.
	whole := slice.Spec.PerDeviceNodeSelection == nil || !*slice.Spec.PerDeviceNodeSelection
	if whole {
		// A slice out of reach is not a failure: it just adds nothing.
		if usable, err := sliceReaches(&slice.Spec, n); err != nil || !usable {
			return err == nil
		}
	}

	for i, d := range s.selectedOf(class, slice) {
		if !whole {
			usable, err := deviceReaches(&slice.Spec.Devices[i], n)
			if err != nil {
				return false
			}
			if !usable {
				continue
			}
		}
		if d.err != nil {
			return false
		}
		if !d.matches {
			continue
		}
		a.allocatable++
		if s.index.isTaken(d.id) {
			a.allocated++
		}
	}

	return true
}

// errEndlessSelector is the error of a class whose selector is not evaluated; see worstCost.
var errEndlessSelector = errors.New("the selector takes too long")

// classSelects reports whether all selectors of the class select the device. A selector of an
// unknown kind selects everything.
func classSelects(class *resourcev1.DeviceClass, driver string, device *resourcev1.Device) (bool, error) {
	for _, selector := range class.Spec.Selectors {
		if selector.CEL == nil {
			continue
		}
		expressions := deviceExpressions()
		compiled := expressions.cache.GetOrCompile(selector.CEL.Expression)
		if compiled.Error != nil {
			return false, compiled.Error
		}
		if expressions.costs.costOf(selector.CEL.Expression).isEndless() {
			return false, errEndlessSelector
		}
		seen := cel.Device{Driver: driver, Attributes: device.Attributes, Capacity: device.Capacity}
		if matches, _, err := compiled.DeviceMatches(context.Background(), seen); err != nil || !matches {
			return false, err
		}
	}
	return true, nil
}

// sliceReaches reports whether the node can use the devices of a slice.
func sliceReaches(spec *resourcev1.ResourceSliceSpec, n *cluster.Node) (bool, error) {
	return isReached(spec.AllNodes, spec.NodeName, spec.NodeSelector, n, true)
}

// deviceReaches reports whether the node can use a device of a slice with perDeviceNodeSelection. A
// device without a node selection is not reached.
func deviceReaches(device *resourcev1.Device, n *cluster.Node) (bool, error) {
	return isReached(device.AllNodes, device.NodeName, device.NodeSelector, n, false)
}

// isReached reports whether a node selection includes the node. without is the result without a
// selection.
func isReached(all *bool, name *string, selector *v1.NodeSelector, n *cluster.Node, without bool) (bool, error) {
	switch {
	case all != nil && *all:
		return true, nil
	case name != nil && *name != "":
		return *name == n.Name, nil
	case selector != nil:
		return selectorReaches(selector, n)
	}
	return without, nil
}

// selectorReaches reports whether a selector selects the node; an invalid one is an error.
func selectorReaches(selector *v1.NodeSelector, n *cluster.Node) (bool, error) {
	if _, err := nodeaffinity.NewNodeSelector(selector); err != nil {
		return false, err
	}
	return readNodeTerms(selector).match(n), nil
}
