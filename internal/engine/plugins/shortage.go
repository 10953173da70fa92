package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Shortage is a resource that a node has too little of.
type Shortage struct {
	Name               v1.ResourceName
	Wanted, Free, Size int64 // CPU in thousandths
}

// Text writes an amount of it as people do.
func (s *Shortage) Text(amount int64) string { return Quantity(s.Name, amount).String() }

// Quantity writes an amount of a resource as people do; CPU is in thousandths.
func Quantity(name v1.ResourceName, amount int64) *resource.Quantity {
	switch name {
	case v1.ResourceCPU:
		return resource.NewMilliQuantity(amount, resource.DecimalSI)
	case v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return resource.NewQuantity(amount, resource.BinarySI)
	}
	return resource.NewQuantity(amount, resource.DecimalSI)
}

// Shortages returns the resources that the pod wants more of than the node has left.
func Shortages(p *cluster.Pod, n *cluster.Node) []Shortage {
	var list []Shortage
	check := func(name v1.ResourceName, wanted, size, requested int64) {
		if wanted > 0 && wanted > size-requested {
			list = append(list, Shortage{name, wanted, size - requested, size})
		}
	}
	r := &p.Class.Requests
	check(v1.ResourceCPU, r.MilliCPU, n.Size.MilliCPU, n.Requested.MilliCPU)
	check(v1.ResourceMemory, r.Memory, n.Size.Memory, n.Requested.Memory)
	check(v1.ResourceEphemeralStorage, r.EphemeralStorage, n.Size.EphemeralStorage, n.Requested.EphemeralStorage)
	var names []v1.ResourceName
	for name := range r.Scalars {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		check(name, r.Scalars[name], n.Size.Scalars[name], n.Requested.Scalars[name])
	}
	return list
}
