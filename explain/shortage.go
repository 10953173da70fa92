package explain

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/simulate"
)

// taint is one that keeps a pod off a node.
type taint struct{ *v1.Taint }

// ofState tells whether the taint comes and goes with the node's state.
func (t taint) ofState() bool { return simulate.OfState(t.Taint) }

// shortage is a resource that a node has too little of.
type shortage struct {
	name               v1.ResourceName
	wanted, free, size int64 // CPU in thousandths
}

// text writes an amount of it as people do.
func (s *shortage) text(amount int64) string { return quantity(s.name, amount).String() }

func quantity(name v1.ResourceName, amount int64) *resource.Quantity {
	switch name {
	case v1.ResourceCPU:
		return resource.NewMilliQuantity(amount, resource.DecimalSI)
	case v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return resource.NewQuantity(amount, resource.BinarySI)
	}
	return resource.NewQuantity(amount, resource.DecimalSI)
}

// shortages are all resources that the pod wants more of than the node has left.
func shortages(p *cluster.Pod, n *cluster.Node) []shortage {
	var list []shortage
	check := func(name v1.ResourceName, wanted, size, requested int64) {
		if wanted > 0 && wanted > size-requested {
			list = append(list, shortage{name, wanted, size - requested, size})
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
