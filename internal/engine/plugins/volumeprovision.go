package plugins

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// provision is where a volume can be made for a claim: by the topologies of its class, and by how
// much room the driver reports. The zero value is nowhere.
type provision struct {
	possible bool // by the class at all
	// topologies are what the class allows: one of them must match. nil: everything is allowed.
	topologies []*rules.Selector
	// The driver tells how much room there is, by topology: one segment with enough must match.
	tracked  bool
	segments []segment
}

// segment is the nodes that a capacity is for, by their labels.
type segment struct {
	nodes    *rules.Selector
	capacity *storagev1.CSIStorageCapacity
}

// noProvisioner marks a class whose volumes are made by hand, such as local disks.
const noProvisioner = "kubernetes.io/no-provisioner"

// readProvision reads where a volume can be made for the claim. Capacities that are too small for
// the claim are left out here, once, instead of at each node.
func readProvision(c *cluster.Cluster, claim *v1.PersistentVolumeClaim) provision {
	class, ok := c.StorageClasses.Get("", claimClass(claim))
	if !ok || class.Provisioner == "" || class.Provisioner == noProvisioner {
		return provision{}
	}

	p := provision{possible: true}
	if len(class.AllowedTopologies) > 0 {
		p.topologies = allowedTopologies(class.AllowedTopologies)
	}

	size, sized := claim.Spec.Resources.Requests[v1.ResourceStorage]
	driver, ok := c.CSIDrivers.Get("", class.Provisioner)
	if !sized || !ok || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return p
	}

	// From here on a node without a segment has no room, even if the driver has not reported
	// anything yet.
	p.tracked = true
	for _, capacity := range c.CSICapacities.All() {
		if capacity.StorageClassName == class.Name && largestVolume(capacity) >= rules.Amount(v1.ResourceStorage, size) &&
			capacity.NodeTopology != nil {
			if nodes, err := rules.ReadSelector(capacity.NodeTopology); err == nil {
				p.segments = append(p.segments, segment{nodes, capacity})
			}
		}
	}

	return p
}

// largestVolume is the size of the largest volume that can be made; -1 if the driver does not say.
func largestVolume(capacity *storagev1.CSIStorageCapacity) int64 {
	switch {
	case capacity.MaximumVolumeSize != nil: // more precise: the room may be in pieces
		return rules.Amount(v1.ResourceStorage, *capacity.MaximumVolumeSize)
	case capacity.Capacity != nil:
		return rules.Amount(v1.ResourceStorage, *capacity.Capacity)
	}
	return -1
}

// allowedTopologies reads the topologies of a class. One that is empty, or cannot be read, allows
// nothing.
func allowedTopologies(terms []v1.TopologySelectorTerm) []*rules.Selector {
	selectors := []*rules.Selector{}
	for _, term := range terms {
		wanted := &metav1.LabelSelector{}
		for _, e := range term.MatchLabelExpressions {
			wanted.MatchExpressions = append(wanted.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: e.Key, Operator: metav1.LabelSelectorOpIn, Values: e.Values,
			})
		}
		if selector, err := rules.ReadSelector(wanted); err == nil && !selector.Empty() {
			selectors = append(selectors, selector)
		}
	}
	return selectors
}

// canProvision reports whether a volume can be made for a node, and whether there is room for it.
// Volumes that are only assumed take no room: as in upstream, two pods may be promised the same
// storage, and the provisioner then refuses the second.
func (p *provision) canProvision(n *cluster.Node) (possible, enough bool) {
	if !p.possible || p.topologies != nil && !anyMatches(p.topologies, n) {
		return false, true
	}
	return true, !p.tracked || p.roomOn(n) != nil
}

// anyMatches reports whether one of the selectors matches the node.
func anyMatches(selectors []*rules.Selector, n *cluster.Node) bool {
	for _, selector := range selectors {
		if selector.Matches(n) {
			return true
		}
	}
	return false
}
