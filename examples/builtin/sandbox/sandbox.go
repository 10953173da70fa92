// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package sandbox is a plugin written like Berth's own: this file has everything that the engine,
// the queue and `berth explain` need, and one line of a catalog enables the plugin.
package sandbox

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Prefix begins the label of a node that has the handler of a runtime class:
// sandbox.example.com/gvisor for the class gvisor.
const Prefix = "sandbox.example.com/"

// Sandbox keeps pods with a runtime class off nodes that do not have its handler, where the kubelet
// would fail to start them.
type Sandbox struct{}

// Entry returns the plugin's entry for a catalog.
func Entry() plugins.Entry {
	return plugins.Entry{Name: Sandbox{}.Name(), Points: plugins.Filters, New: plugins.Plain(Sandbox{})}
}

var missing = &plugins.Rejection{Code: "NoSandbox",
	Reasons: []string{"node(s) didn't have the handler of the pod's runtime class"}, Unresolvable: true}

// Name implements plugins.Filter.
func (Sandbox) Name() string { return "Sandbox" }

// Reads implements plugins.Filter. The verdict depends only on labels, so nodes with the same
// labels share a verdict.
func (Sandbox) Reads() plugins.Part { return plugins.Labels }

// Filter implements plugins.Filter.
func (Sandbox) Filter(_ *cluster.Cluster, p *cluster.Pod) plugins.Judge {
	class := p.Spec().RuntimeClassName
	if class == nil {
		return plugins.Judge{}
	}
	return plugins.Judge{Node: func(n *cluster.Node) *plugins.Rejection {
		if !n.Has(Prefix + *class) {
			return missing
		}
		return nil
	}}
}

// Interests implements plugins.Requeuer.
func (Sandbox) Interests(setting plugins.Setting) []queue.Interest {
	return []queue.Interest{{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel, Hint: setting.NodeNowPasses}}
}

// Wakes implements plugins.Waker.
func (Sandbox) Wakes() []string { return []string{"a node is added or changes its labels"} }

// Detail implements plugins.Detailer.
func (Sandbox) Detail(_ *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	return func(*cluster.Node) string { return "lacks " + *p.Spec().RuntimeClassName }
}

// Propose implements plugins.Proposer.
func (Sandbox) Propose(p *cluster.Pod, _ *v1.Pod, nodes []*cluster.Node) []plugins.Proposal {
	class, node := *p.Spec().RuntimeClassName, nodes[0].Name
	return []plugins.Proposal{{
		Kind: "InstallSandbox", Text: fmt.Sprintf("install %s on %s", class, node), Size: 40,
		NodeName: node, Node: func(n *v1.Node) { n.Labels[Prefix+class] = "" },
	}}
}
