// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// provision holds the topologies in which a claim's volume can be provisioned, according to its
// class and the capacity reported by the driver. The zero value is empty.
type provision struct {
	possible bool // according to the class
	// topologies are the class's allowed topologies; one of them must match. nil allows everything.
	topologies []*rules.Selector
	// tracked means that the driver reports its capacity by topology: a segment with enough
	// capacity must match.
	tracked  bool
	segments []segment
}

// segment is the set of nodes covered by a capacity, by their labels.
type segment struct {
	nodes    *rules.Selector
	capacity *storagev1.CSIStorageCapacity
}

// noProvisioner marks a class of manually created volumes, such as local disks.
const noProvisioner = "kubernetes.io/no-provisioner"

// readProvision determines where a volume can be provisioned for the claim. It drops capacities
// that are too small for the claim once, rather than at each node.
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

	// With tracked set, a node without a segment lacks room, even if the driver has yet to report
	// any capacity.
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

// largestVolume is the size of the largest volume that can be provisioned; -1 if unreported.
func largestVolume(capacity *storagev1.CSIStorageCapacity) int64 {
	switch {
	case capacity.MaximumVolumeSize != nil: // more precise than the capacity, because the storage may be fragmented
		return rules.Amount(v1.ResourceStorage, *capacity.MaximumVolumeSize)
	case capacity.Capacity != nil:
		return rules.Amount(v1.ResourceStorage, *capacity.Capacity)
	}
	return -1
}

// allowedTopologies reads the topologies of a class. An empty or unreadable topology allows no
// node.
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

// canProvision reports whether a volume can be provisioned for a node, and whether there is room
// for it. Assumed volumes take no room: as in upstream, two pods may rely on the same storage, and
// the provisioner then refuses the second pod's volume.
func (p *provision) canProvision(n *cluster.Node) (possible, enough bool) {
	if !p.possible || p.topologies != nil && !anyMatches(p.topologies, n) {
		return false, true
	}
	return true, !p.tracked || p.roomOn(n) != nil
}

// unprovisionable returns a function that describes why no volume can be provisioned for the claim
// on a node. It returns "" if a volume can be provisioned.
func unprovisionable(c *cluster.Cluster, claim *v1.PersistentVolumeClaim) func(*cluster.Node) string {
	p := readProvision(c, claim)
	if !p.possible {
		return func(*cluster.Node) string { return "" }
	}
	class, _ := c.StorageClasses.Get("", claimClass(claim)) // found by readProvision
	allowed, nodes := 0, 0
	for _, n := range c.Nodes {
		if n != nil {
			nodes++
			if p.topologies == nil || anyMatches(p.topologies, n) {
				allowed++
			}
		}
	}

	return func(n *cluster.Node) string {
		switch possible, enough := p.canProvision(n); {
		case !possible:
			return fmt.Sprintf("persistentvolumeclaim %q: storageclass %q allows volumes only in %s, which holds for %d of %d nodes",
				claim.Name, class.Name, topologyText(class.AllowedTopologies), allowed, nodes)
		case !enough:
			return fmt.Sprintf("persistentvolumeclaim %q: wants %s, %s", claim.Name,
				claim.Spec.Resources.Requests.Storage(), reportedRoom(c, class, n))
		}
		return ""
	}
}

// topologyText formats the allowed topologies of a class.
func topologyText(terms []v1.TopologySelectorTerm) string {
	expression := func(e v1.TopologySelectorLabelRequirement) string {
		return e.Key + " " + strings.Join(e.Values, " or ")
	}
	return strings.Join(rules.Mapped(terms, func(term v1.TopologySelectorTerm) string {
		return strings.Join(rules.Mapped(term.MatchLabelExpressions, expression), " and ")
	}), ", or ")
}

// reportedRoom describes the largest volume that the class's driver has reported for the node.
func reportedRoom(c *cluster.Cluster, class *storagev1.StorageClass, n *cluster.Node) string {
	var best *storagev1.CSIStorageCapacity
	for _, capacity := range c.CSICapacities.All() {
		if capacity.StorageClassName != class.Name || capacity.NodeTopology == nil {
			continue
		}
		if at, err := rules.ReadSelector(capacity.NodeTopology); err == nil && at.Matches(n) &&
			(best == nil || largestVolume(capacity) > largestVolume(best)) {
			best = capacity
		}
	}

	switch {
	case best == nil:
		return fmt.Sprintf("no CSIStorageCapacity of storageclass %q covers the node", class.Name)
	case best.MaximumVolumeSize != nil:
		return fmt.Sprintf("%s makes volumes of at most %s there", class.Provisioner, best.MaximumVolumeSize)
	case best.Capacity != nil:
		return fmt.Sprintf("%s has %s free there", class.Provisioner, best.Capacity)
	}
	return fmt.Sprintf("%s has reported no size there", class.Provisioner)
}

// anyMatches reports whether one of the selectors matches the node.
func anyMatches(selectors []*rules.Selector, n *cluster.Node) bool {
	return slices.ContainsFunc(selectors, func(s *rules.Selector) bool { return s.Matches(n) })
}
