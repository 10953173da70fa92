// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// mostLooks is the maximum number of places examined for a pod, which takes the first place that
// its constraints allow. All places of an item are equivalent for the packing, so examining more
// places helps only if many domains are full.
const mostLooks = 256

// place is a node with room for a number of pods of an item. room counts pods of the item, since
// they all have the same size.
type place struct {
	node *v1.Node
	room int
}

// assign distributes the pods of each item among the nodes bought for them, and determines their
// order. Pods of an item are equivalent for the packing, but not for spread constraints. A pod
// without an allowed place gets no turn.
//
// d.order begins with the pods with hard spread constraints. Each of them takes the first place its
// constraints allow, and then counts for later pods. The engine tries a pod without a place on any
// node, after all pods with a place.
func (d *demand) assign(s *packing.Solution, nodes []*v1.Node) map[types.UID]simulate.Turn {
	counts := d.spreads
	// The counts include the tentative choices of zones. From here on only placed and assigned pods
	// count.
	counts.countAnew(d.world, isTrial)
	places := make([][]place, len(d.items))
	// Each new node is a domain without pods.
	for i, b := range s.Bins {
		counts.add(nodes[i].Labels)
		for _, part := range b.Items {
			places[part.Item] = append(places[part.Item], place{nodes[i], part.Count})
		}
	}

	itemOf := map[types.UID]int{}
	for i, it := range d.items {
		for _, p := range it.pods {
			itemOf[p.UID] = i
		}
	}

	// Turns are numbered in the order of d.order, the engine's order of attempts.
	turns := make(map[types.UID]simulate.Turn, len(itemOf))
	for _, p := range d.order {
		// The pod belongs to a group and has room on an existing node.
		if node := d.kept[p.UID]; node != nil {
			turns[p.UID] = simulate.Turn{Node: node.Name, Number: len(turns)}
			counts.count(p.Class, node.Labels)
			continue
		}
		// A pod is in no item if no node of the catalog takes it.
		item, known := itemOf[p.UID]
		if !known {
			continue
		}
		list := places[item]
		at := slices.IndexFunc(list[:min(len(list), mostLooks)], func(to place) bool { return counts.allow(p.Class, to.node.Labels) })
		if at < 0 {
			continue
		}

		to := &list[at]
		turns[p.UID] = simulate.Turn{Node: to.node.Name, Number: len(turns)}
		counts.count(p.Class, to.node.Labels)
		if to.room--; to.room == 0 {
			// Remove a full place in constant time.
			list[at] = list[0]
			places[item] = list[1:]
		}
	}
	return turns
}

// Node is a node to be bought. Once the plan is made, it exists in the world under this name.
type Node struct {
	Name         string  `json:"name"`
	Pool         string  `json:"pool"`
	Type         string  `json:"type"`
	Zone         string  `json:"zone,omitempty"`
	CapacityType string  `json:"capacityType,omitempty"`
	Price        float64 `json:"pricePerHour"`
	// Pods lists the pods placed there, as namespace/name, without those of DaemonSets.
	Pods []string `json:"pods"`
	// CPU and Memory are the shares requested by its pods, in percent.
	CPU    float64 `json:"cpuPercent"`
	Memory float64 `json:"memoryPercent"`

	// offer is the index of the node's offer in Catalog.Offers.
	offer int
}

// isNew reports whether a node was bought by this plan.
func (m *maker) isNew(node string) bool { return m.named[node] }

// node creates a node of an offer and records it in the plan. It does not add the node to the
// world.
func (m *maker) node(offer int) *v1.Node {
	// Names count per pool: web-new-1, web-new-2 and so on.
	o := &m.c.Offers[offer]
	if m.number == nil {
		m.number = map[string]int{}
	}

	name := ""
	// Skip names of existing nodes, and of nodes that exist until the plan is carried out.
	for name == "" || m.w.Node(name) != nil || m.o.leaving.Has(name) {
		m.number[o.Pool]++
		name = fmt.Sprintf("%s-new-%d", strings.ToLower(o.Pool), m.number[o.Pool])
	}

	node := o.named(name, m.w)
	m.plan.Nodes = append(m.plan.Nodes, Node{
		Name: name, Pool: o.Pool, Type: o.Type, Zone: o.Zone, CapacityType: o.CapacityType, Price: o.Price, Pods: []string{}, offer: offer,
	})
	m.bought, m.named[name] = append(m.bought, offer), true
	return node
}

// named returns a node of the offer with this name, created at the world's current time.
func (o *Offer) named(name string, w *simulate.World) *v1.Node {
	node := o.Node.DeepCopy()
	node.Name = name
	node.CreationTimestamp = metav1.NewTime(w.Now())
	metav1.SetMetaDataLabel(&node.ObjectMeta, v1.LabelHostname, name)
	return node
}
