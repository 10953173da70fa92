// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Codes of NodeUnschedulable and NodeName.
const (
	CodeNodeUnschedulable = "NodeUnschedulable"
	CodeNodeNameMismatch  = "NodeNameMismatch"
)

// NodeUnschedulable rejects cordoned nodes (kubectl cordon sets spec.unschedulable), unless the pod
// tolerates the cordon's taint, as pods of DaemonSets do.
type NodeUnschedulable struct{}

// cordon is the taint that a pod must tolerate to pass a cordon. The node may lack it: the node
// controller adds it some time after spec.unschedulable is set.
var cordon = v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}

var cordoned = &Rejection{Code: CodeNodeUnschedulable, Reasons: []string{"node(s) were unschedulable"}, Unresolvable: true}

// Name implements Filter.
func (NodeUnschedulable) Name() string { return "NodeUnschedulable" }

// Reads implements Filter.
func (NodeUnschedulable) Reads() Part { return Taints }

// Steady implements Steady.
func (NodeUnschedulable) Steady() {}

// Filter implements Filter. Unlike TaintToleration it does not exclude the operators Gt and Lt,
// which cannot match because the taint has no value.
func (NodeUnschedulable) Filter(_ *cluster.Cluster, p *cluster.Pod) Judge {
	if rules.TolerationOf(&cordon, p.Spec().Tolerations) != nil {
		return Judge{}
	}
	return Judge{Node: func(n *cluster.Node) *Rejection {
		if n.Taints.Unschedulable {
			return cordoned
		}
		return nil
	}}
}

// Interests implements Requeuer. A cordon counts as an update of taints despite being a field of
// the spec: both are in the node's TaintSet. For the pending pod, only a new toleration matters.
func (NodeUnschedulable) Interests(setting Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeTaint, Hint: setting.NodeNowPasses, Narrowing: byTaints(cordonTaints)},
		{Resource: queue.Pod, Action: queue.UpdatePodToleration, Hint: Own},
	}
}

// Wakes implements Waker.
func (NodeUnschedulable) Wakes() []string {
	return []string{"a node is added", "a node is uncordoned"}
}

// Fixes implements Fixer.
func (NodeUnschedulable) Fixes() []Fix { return []Fix{Uncordon} }
