package plugins

import (
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// CodePortTaken is the code of NodePorts.
const CodePortTaken = "HostPortTaken"

// NodePorts rejects nodes where another pod uses a host port that the pod needs: the same port and
// protocol on an overlapping host IP, where 0.0.0.0 overlaps with all. Upstream keeps a table of
// ports per node, in which two pods with the same port are one entry; here the pods themselves are
// compared, so that the port is free only when both are gone.
type NodePorts struct{}

// portTaken is shared by all judges. It must not be changed.
var portTaken = &Rejection{Code: CodePortTaken, Reasons: []string{"node(s) didn't have free ports for the requested pod ports"}}

// Name implements Filter.
func (NodePorts) Name() string { return "NodePorts" }

// Reads implements Filter.
func (NodePorts) Reads() Part { return Contents }

// Steady implements Steady.
func (NodePorts) Steady() {}

// Filter implements Filter. Preemption can help: ports are free once their pods have left.
func (NodePorts) Filter(_ *cluster.Cluster, p *cluster.Pod) Judge {
	wanted := p.Class.Ports
	if wanted == nil {
		return Judge{}
	}
	return Judge{Node: func(n *cluster.Node) *Rejection {
		for _, other := range n.Pods {
			if wanted.Conflict(other.Class.Ports) {
				return portTaken
			}
		}
		return nil
	}}
}

// Interests implements Requeuer. A pod with one of the ports has to leave; pods without host ports,
// which are most, are left out before any class is asked about.
func (NodePorts) Interests(Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add},
		{Resource: queue.Pod, Action: queue.Delete, Hint: func(item *queue.Item, e *queue.Event) bool {
			return e.PodBefore != nil && item.Class.Ports.Conflict(e.PodBefore.Class.Ports)
		}, Narrowing: everyoneUnless(func(e *queue.Event) bool { return e.PodBefore == nil || e.PodBefore.Class.Ports == nil })},
	}
}

// Wakes implements Waker.
func (NodePorts) Wakes() []string {
	return []string{"a node is added", "a pod leaves its node"}
}

// Fixes implements Fixer.
func (NodePorts) Fixes() []Fix { return []Fix{FreePort} }

// Detail implements Detailer: the pod that uses the port.
func (NodePorts) Detail(_ *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	return func(n *cluster.Node) string {
		var list []string
		for _, o := range PortHolders(p, n) {
			list = append(list, o.Namespace()+"/"+o.Name)
		}
		return "taken by " + strings.Join(list, ", ")
	}
}

// PortHolders returns the node's pods that use a host port which the pod needs.
func PortHolders(p *cluster.Pod, n *cluster.Node) (list []*cluster.Pod) {
	for _, o := range n.Pods {
		if p.Class.Ports.Conflict(o.Class.Ports) {
			list = append(list, o)
		}
	}
	return list
}
