// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// NodeName rejects all nodes except the one named in the pod's spec.
type NodeName struct{}

var elsewhere = &Rejection{Code: CodeNodeNameMismatch,
	Reasons: []string{"node(s) didn't match the requested node name"}, Unresolvable: true}

// Name implements Filter.
func (NodeName) Name() string { return "NodeName" }

// Reads implements Filter.
func (NodeName) Reads() Part { return Identity }

// Steady implements Steady.
func (NodeName) Steady() {}

// Filter implements Filter.
func (NodeName) Filter(_ *cluster.Cluster, p *cluster.Pod) Judge {
	if p.NodeName == "" {
		return Judge{}
	}
	return Judge{Node: func(n *cluster.Node) *Rejection {
		if n.Name != p.NodeName {
			return elsewhere
		}
		return nil
	}}
}

// Interests implements Requeuer. Only the addition of a node with this name helps: names do not
// change.
func (NodeName) Interests(setting Setting) []queue.Interest {
	return []queue.Interest{{Resource: queue.Node, Action: queue.Add, Hint: setting.NodeNowPasses}}
}

// Wakes implements Waker.
func (NodeName) Wakes() []string {
	return []string{"a node is added"}
}
