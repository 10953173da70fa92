// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// CodePortTaken is the code of NodePorts.
const CodePortTaken = "HostPortTaken"

// NodePorts rejects nodes where another pod uses a host port needed by the pod: the same port and
// protocol on an overlapping host IP, where 0.0.0.0 overlaps with all. Upstream keeps a table of
// ports per node, with a single entry for two pods with the same port. Berth compares the pods
// themselves, so the port is free only after both have left.
type NodePorts struct{}

// portTaken is shared by all judges and must not be modified.
var portTaken = &Rejection{Code: CodePortTaken, Reasons: []string{"node(s) didn't have free ports for the requested pod ports"}}

// Name implements Filter.
func (NodePorts) Name() string { return "NodePorts" }

// Reads implements Filter.
func (NodePorts) Reads() Part { return Contents }

// Steady implements Steady.
func (NodePorts) Steady() {}

// Filter implements Filter. Preemption can help by freeing the victims' ports.
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

// Interests implements Requeuer. A pod with one of the ports must leave. The departure of a pod
// without host ports, the usual case, is dismissed before any pending pod is examined.
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

// Detail implements Detailer. It names the pod that uses the port.
func (NodePorts) Detail(_ *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	return func(n *cluster.Node) string {
		list := rules.Mapped(PortHolders(p, n), func(o *cluster.Pod) string { return o.Namespace() + "/" + o.Name() })
		return "taken by " + strings.Join(list, ", ")
	}
}

// PortHolders returns the node's pods that use a host port needed by the pod.
func PortHolders(p *cluster.Pod, n *cluster.Node) (list []*cluster.Pod) {
	for _, o := range n.Pods {
		if p.Class.Ports.Conflict(o.Class.Ports) {
			list = append(list, o)
		}
	}
	return list
}
