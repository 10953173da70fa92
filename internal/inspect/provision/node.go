// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

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
