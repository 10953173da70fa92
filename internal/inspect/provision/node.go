package provision

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Node is a node to be bought. It is in the world, under this name, once the plan is made.
type Node struct {
	Name         string  `json:"name"`
	Pool         string  `json:"pool"`
	Type         string  `json:"type"`
	Zone         string  `json:"zone,omitempty"`
	CapacityType string  `json:"capacityType,omitempty"`
	Price        float64 `json:"pricePerHour"`
	// Pods are those that go there, as namespace/name. Those of DaemonSets are not listed.
	Pods []string `json:"pods"`
	// CPU and Memory are how much of what it has its pods request, in percent.
	CPU    float64 `json:"cpuPercent"`
	Memory float64 `json:"memoryPercent"`

	// offer is its index in Catalog.Offers.
	offer int
}

// isNew reports whether a node was bought by this plan.
func (m *maker) isNew(node string) bool { return m.named[node] }

// node makes a node of an offer. It is noted in the plan, but not yet in the world.
func (m *maker) node(offer int) *v1.Node {
	// Names count per pool: web-new-1, web-new-2 and so on.
	o := &m.c.Offers[offer]
	if m.number == nil {
		m.number = map[string]int{}
	}

	name := ""
	// Names of nodes that there are already are passed over.
	for name == "" || m.w.Node(name) != nil {
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

// named returns a node of the offer. It was created now, so that nodes which must have been ready
// for some time are not.
func (o *Offer) named(name string, w *simulate.World) *v1.Node {
	node := o.Node.DeepCopy()
	node.Name = name
	node.CreationTimestamp = metav1.NewTime(w.Now())
	metav1.SetMetaDataLabel(&node.ObjectMeta, v1.LabelHostname, name)
	return node
}
