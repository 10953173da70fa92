package plugins

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/cluster"
)

// classesByResource tells which of the resources a DeviceClass stands for.
func classesByResource(c *cluster.Cluster, names []v1.ResourceName) map[v1.ResourceName]bool {
	if c.DeviceClasses.Len() == 0 {
		return nil
	}
	classes := map[v1.ResourceName]bool{}
	for _, name := range names {
		if deviceClassOf(c, name) != nil {
			classes[name] = true
		}
	}
	return classes
}

// deviceCounts counts, per node, the devices that stand for extended resources, for the scores of the resource plugins. What
// the pods request of such a resource is not counted: a claim holds the devices.
type deviceCounts struct {
	slices  []*resourcev1.ResourceSlice
	classes map[v1.ResourceName]*classDevices
}

// classDevices are the devices that a class selects, by slice and place in it.
type classDevices struct {
	selected [][]selectedDevice
}

type selectedDevice struct {
	matches, taken bool
	err            error
}

// deviceExpressions keeps the selectors of the few classes that stand for a resource compiled.
var deviceExpressions = sync.OnceValue(func() *cel.Cache {
	return cel.NewCache(32, cel.Features{EnableConsumableCapacity: true})
})

// newDeviceCounts returns nil, the common case, if no class stands for a resource that the scorer weighs and the pod wants.
func newDeviceCounts(c *cluster.Cluster, specs resourceSpecs, wanted []int64) *deviceCounts {
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
		if counts == nil {
			counts = &deviceCounts{slices: c.ResourceSlices.All(), classes: map[v1.ResourceName]*classDevices{}}
		}
		counts.classes[name] = counts.selectDevices(c, class)
	}
	return counts
}

func (d *deviceCounts) selectDevices(c *cluster.Cluster, class *resourcev1.DeviceClass) *classDevices {
	var index deviceIndex
	index.follow(c)
	devices := &classDevices{selected: make([][]selectedDevice, len(d.slices))}
	for i, slice := range d.slices {
		devices.selected[i] = make([]selectedDevice, len(slice.Spec.Devices))
		for j := range slice.Spec.Devices {
			device := &slice.Spec.Devices[j]
			s := &devices.selected[i][j]
			s.matches, s.err = selects(class, slice.Spec.Driver, device)
			s.taken = structured.IsDeviceAllocated(structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, device.Name), &index.taken)
		}
	}
	return devices
}

func selects(class *resourcev1.DeviceClass, driver string, device *resourcev1.Device) (bool, error) {
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

// on counts the devices that the node can use. A selector that cannot be evaluated takes the resource out of the score, as
// upstream does.
func (d *deviceCounts) on(n *cluster.Node, name v1.ResourceName) (a amounts) {
	devices := d.classes[name]
	if devices == nil {
		return amounts{}
	}
	for i, slice := range d.slices {
		whole := slice.Spec.PerDeviceNodeSelection == nil || !*slice.Spec.PerDeviceNodeSelection
		if whole {
			usable, err := sliceReaches(&slice.Spec, n)
			if err != nil {
				return amounts{}
			}
			if !usable {
				continue
			}
		}
		for j := range slice.Spec.Devices {
			if !whole {
				usable, err := deviceReaches(&slice.Spec.Devices[j], n)
				if err != nil {
					return amounts{}
				}
				if !usable {
					continue
				}
			}
			s := devices.selected[i][j]
			if s.err != nil {
				return amounts{}
			}
			if s.matches {
				a.allocatable++
			}
			if s.matches && s.taken {
				a.allocated++
			}
		}
	}
	return a
}

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

func selectorReaches(selector *v1.NodeSelector, n *cluster.Node) (bool, error) {
	if _, err := nodeaffinity.NewNodeSelector(selector); err != nil {
		return false, err
	}
	return readNodeTerms(selector).match(n), nil
}
