package plugins

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// classesByResource returns which of the resources a DeviceClass provides; nil if there is no
// class, which answers false for all.
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

// deviceStock counts the devices that provide extended resources, for the scores of
// NodeResourcesFit and NodeResourcesBalancedAllocation. It caches what selectors select of slices,
// and recounts a node's devices only when they, or the claims that hold them, have changed. It has
// an index of its own, because these plugins work without DynamicResources, too.
type deviceStock struct {
	mutex    sync.Mutex
	index    deviceIndex
	classes  uint64 // the version of the device classes that all is up to date with
	slices   uint64 // the same of slices
	selected map[*resourcev1.DeviceClass]map[*resourcev1.ResourceSlice][]selectedDevice
	shared   []*resourcev1.ResourceSlice // those that are not of one node alone
	known    map[stockKey]stocked
}

// selectedDevice is a device of a slice, and whether a class selects it. err: its selectors could
// not be evaluated.
type selectedDevice struct {
	id      structured.DeviceID
	matches bool
	err     error
}

// stockKey is what a count depends on besides devices and claims.
type stockKey struct {
	class *resourcev1.DeviceClass
	node  individual
}

// stocked is how many devices of a class a node has, and when they were counted.
type stocked struct {
	amounts
	own *nodeDevices
	at  uint64
}

// deviceCounts counts, per node, the devices that provide extended resources, for the scores of the
// resource plugins. What pods request of such a resource is not counted: their claims hold the
// devices. classes are those of one pod's resources.
type deviceCounts struct {
	stock   *deviceStock
	classes map[v1.ResourceName]*resourcev1.DeviceClass
}

// deviceExpressions caches the compiled selectors of the few classes that provide a resource. It is
// shared by all plugins and profiles: what an expression compiles to depends on its text alone.
var deviceExpressions = sync.OnceValue(func() *cel.Cache {
	return newSelectorCache(32)
})

// countsFor returns nil, the common case, if no class provides a resource that the scorer weighs
// and the pod requests.
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
		// Only now: pods that need no devices are not to pay for the index.
		if counts == nil {
			s.followCluster(c)
			counts = &deviceCounts{stock: s, classes: map[v1.ResourceName]*resourcev1.DeviceClass{}}
		}
		counts.classes[name] = class
	}

	return counts
}

// followCluster brings the stock up to date: it is called before nodes are scored. Selections are
// by class and slice, whose pointers change with their contents, so only what is out of use has to
// be dropped.
func (s *deviceStock) followCluster(c *cluster.Cluster) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.index.c != c || s.classes != c.DeviceClasses.Version {
		s.selected, s.known = map[*resourcev1.DeviceClass]map[*resourcev1.ResourceSlice][]selectedDevice{}, map[stockKey]stocked{}
	}
	// Taken before the index follows, which makes the two equal.
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
			for slice := range of {
				if s.index.sliceOf[slice.Name] != slice {
					delete(of, slice)
				}
			}
		}
	}
	if len(s.known) > 4*len(c.Nodes)+64 { // nodes, or labels, that are no more
		clear(s.known)
	}
}

// selectedOf returns the devices of a slice that the class selects.
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

// countOn counts the devices that the node can use: allocatable are all, allocated those that
// claims hold. As upstream, a selector that cannot be evaluated takes the resource out of the
// score, on nodes with such a device. Nodes are counted one at a time.
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
		// now is the index's count: what changes afterwards has a higher one.
		known = stocked{s.countDevices(n, class), s.index.devicesOf(n.Name), s.index.now}
		s.known[key] = known
	}
	return known.amounts
}

// countDevices counts the devices of a class that the node can use, its own and those that it
// shares with others.
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

// addSlice counts the devices of a slice. It returns false if a selector cannot be evaluated.
func (s *deviceStock) addSlice(a *amounts, n *cluster.Node, class *resourcev1.DeviceClass, slice *resourcev1.ResourceSlice) bool {
	// Without per-device selection the slice says once for all of its devices which nodes reach
	// them.
	whole := slice.Spec.PerDeviceNodeSelection == nil || !*slice.Spec.PerDeviceNodeSelection
	if whole {
		// Out of reach is no fault: the slice just adds nothing.
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

// classSelects reports whether all selectors of the class select the device. One of an unknown kind
// selects everything.
func classSelects(class *resourcev1.DeviceClass, driver string, device *resourcev1.Device) (bool, error) {
	for _, selector := range class.Spec.Selectors {
		if selector.CEL == nil {
			continue
		}
		compiled := deviceExpressions().GetOrCompile(selector.CEL.Expression)
		if compiled.Error != nil {
			return false, compiled.Error
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
	switch {
	case spec.AllNodes != nil && *spec.AllNodes:
		return true, nil
	case spec.NodeName != nil && *spec.NodeName != "":
		return *spec.NodeName == n.Name, nil
	case spec.NodeSelector != nil:
		return selectorReaches(spec.NodeSelector, n)
	}
	return true, nil
}

// deviceReaches is the same for a device of a slice with perDeviceNodeSelection. A device that says
// nothing is not reached.
func deviceReaches(device *resourcev1.Device, n *cluster.Node) (bool, error) {
	switch {
	case device.AllNodes != nil && *device.AllNodes:
		return true, nil
	case device.NodeName != nil && *device.NodeName != "":
		return *device.NodeName == n.Name, nil
	case device.NodeSelector != nil:
		return selectorReaches(device.NodeSelector, n)
	}
	return false, nil
}

// selectorReaches reports whether a selector selects the node; an invalid one is an error.
func selectorReaches(selector *v1.NodeSelector, n *cluster.Node) (bool, error) {
	if _, err := nodeaffinity.NewNodeSelector(selector); err != nil {
		return false, err
	}
	return readNodeTerms(selector).match(n), nil
}
