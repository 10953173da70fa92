// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"errors"
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Annotations of a template node. The cluster autoscaler's kwok provider reads the last three, and
// sets groupAnnotation on the nodes that it creates. On a node of a live cluster, PriceAnnotation
// gives --replace the node's price.
const (
	// PriceAnnotation is the hourly cost of such a node.
	PriceAnnotation = "berth.dev/price"
	// MostAnnotation is the maximum number of nodes, and LeastAnnotation is the minimum number.
	MostAnnotation  = "berth.dev/most"
	LeastAnnotation = "berth.dev/least"

	groupAnnotation    = "cluster-autoscaler.kwok.nodegroup/name"
	maxCountAnnotation = "cluster-autoscaler.kwok.nodegroup/max-count"
	minCountAnnotation = "cluster-autoscaler.kwok.nodegroup/min-count"
)

// NodeAnnotations are the annotations read from nodes of a live cluster.
var NodeAnnotations = []string{PriceAnnotation, groupAnnotation}

// offerOf returns the offer of a template. Errors name the field. It modifies the node only to fill
// in missing allocatable amounts from the capacity.
func offerOf(node *v1.Node) (*Offer, error) {
	price, ok := node.Annotations[PriceAnnotation]
	if !ok {
		return nil, fmt.Errorf("metadata.annotations[%s]: required: what such a node costs an hour", PriceAnnotation)
	}

	o := &Offer{
		Pool: node.Name, Type: node.Labels[v1.LabelInstanceTypeStable], Zone: node.Labels[v1.LabelTopologyZone],
		CapacityType: node.Labels[capacityTypeLabel], pool: -1,
	}

	var err error
	if o.Price, err = strconv.ParseFloat(price, 64); err != nil || !isPrice(o.Price) {
		return nil, fmt.Errorf("metadata.annotations[%s]: %q: must be a number, 0 or more", PriceAnnotation, price)
	}

	// The autoscaler's annotations take precedence over Berth's.
	for _, key := range []string{MostAnnotation, maxCountAnnotation} {
		if text, ok := node.Annotations[key]; ok {
			if o.Most, err = strconv.Atoi(text); err != nil || o.Most < 1 {
				return nil, fmt.Errorf("metadata.annotations[%s]: %q: must be a whole number, 1 or more", key, text)
			}
		}
	}
	for _, key := range []string{LeastAnnotation, minCountAnnotation} {
		if text, ok := node.Annotations[key]; ok {
			if o.Least, err = strconv.Atoi(text); err != nil || o.Least < 0 || o.Most > 0 && o.Least > o.Most {
				return nil, fmt.Errorf("metadata.annotations[%s]: %q: must be a whole number, 0 or more, and no more than "+
					"there can be", key, text)
			}
		}
	}

	if group := node.Annotations[groupAnnotation]; group != "" {
		o.Pool = group
	}
	// A hand-written template may have only its capacity: then all of it is available to pods.
	if len(node.Status.Allocatable) == 0 {
		node.Status.Allocatable = node.Status.Capacity
	}

	if len(node.Status.Allocatable) == 0 {
		return nil, errors.New("status.allocatable: required: what such a node has for pods")
	}
	o.Node = simulate.NodeLike(node, "")
	return o, nil
}

// has reports whether a node belongs to a template's offer. A node that refers to a node group of
// the cluster autoscaler's kwok provider belongs to that group. Any other node is recognized by
// having all labels of the template.
func (o *Offer) has(n *v1.Node) bool {
	if o.pool >= 0 {
		return false
	}
	if group := n.Annotations[groupAnnotation]; group != "" {
		return group == o.Pool &&
			(o.Type == "" || n.Labels[v1.LabelInstanceTypeStable] == o.Type) &&
			(o.Zone == "" || n.Labels[v1.LabelTopologyZone] == o.Zone)
	}

	// Nodes of every kind may have the common labels, so a template without further labels
	// recognizes no node.
	known := false
	for key, value := range o.Node.Labels {
		if key == v1.LabelHostname {
			continue
		}
		if n.Labels[key] != value {
			return false
		}
		known = known || !commonLabels[key]
	}
	return known
}

// commonLabels describe a node's location or operating system, but not its kind.
var commonLabels = map[string]bool{
	v1.LabelOSStable: true, v1.LabelArchStable: true, v1.LabelTopologyZone: true, v1.LabelTopologyRegion: true,
	capacityTypeLabel: true, "beta.kubernetes.io/os": true, "beta.kubernetes.io/arch": true,
}

// there returns the number of nodes of a template's offer that existed before the plan. It does not
// count nodes of NodePools; see left for their limits.
func (m *maker) there(offer int) (count int) {
	if o := &m.c.Offers[offer]; o.pool < 0 {
		for _, n := range m.standingNodes() {
			if o.has(n) {
				count++
			}
		}
	}
	return count
}

// fillGroups raises each node group with purchased nodes to its minimum size. The group cannot be
// smaller, so the price of the plan includes the additional nodes.
func (m *maker) fillGroups() {
	bought := map[int]int{}
	for _, offer := range m.bought {
		bought[offer]++
	}

	for i, o := range m.c.Offers {
		if bought[i] == 0 || bought[i] >= o.Least {
			continue
		}
		// Existing nodes of the group count towards its minimum number.
		missing := o.Least - bought[i] - m.there(i)
		if missing <= 0 {
			continue
		}

		var made []metav1.Object
		for range missing {
			made = append(made, m.node(i))
		}
		if _, err := m.w.Apply(manifest.Assemble("the catalog", made)); err != nil {
			return // maker.make returns the world's error
		}
		m.plan.Notes = append(m.plan.Notes, fmt.Sprintf(
			"node group %s has at least %d nodes: pods need %d of the new ones", o.Pool, o.Least, bought[i]))
	}
}
