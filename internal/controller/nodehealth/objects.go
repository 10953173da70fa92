// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"time"
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	nodetopology "k8s.io/component-helpers/node/topology"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Node is the part of a node that node health depends on.
type Node struct {
	Name            string
	UID             types.UID
	ResourceVersion string
	Created         time.Time
	Zone            string // nodetopology.GetZoneKey: region and zone
	Excluded        bool   // has the label node.kubernetes.io/exclude-disruption; not counted in its zone
	Unschedulable   bool
	Taints          []v1.Taint
	Conditions      []v1.NodeCondition // of the types in watched
	Labels          map[string]string  // pairs in mirrored that differ
}

// watched maps the statuses of conditions to the keys of taints.
var watched = map[v1.NodeConditionType]map[v1.ConditionStatus]string{
	v1.NodeReady: {
		v1.ConditionFalse:   v1.TaintNodeNotReady,
		v1.ConditionUnknown: v1.TaintNodeUnreachable,
	},
	v1.NodeMemoryPressure:     {v1.ConditionTrue: v1.TaintNodeMemoryPressure},
	v1.NodeDiskPressure:       {v1.ConditionTrue: v1.TaintNodeDiskPressure},
	v1.NodePIDPressure:        {v1.ConditionTrue: v1.TaintNodePIDPressure},
	v1.NodeNetworkUnavailable: {v1.ConditionTrue: v1.TaintNodeNetworkUnavailable},
}

// mirrored maps labels to the beta names known to old clients. If the two labels differ, the value
// of the stable label is copied.
var mirrored = map[string]string{
	v1.LabelOSStable:   "beta.kubernetes.io/os",
	v1.LabelArchStable: "beta.kubernetes.io/arch",
}

const excludeDisruption = "node.kubernetes.io/exclude-disruption"

// NodeOf converts an API node. The result shares only immutable data with the API node. Fields that
// do not affect decisions are omitted, so that heartbeats take little memory, and little space in a
// journal.
func NodeOf(node *v1.Node) Node {
	n := Node{
		Name:            node.Name,
		UID:             node.UID,
		ResourceVersion: node.ResourceVersion,
		Created:         node.CreationTimestamp.Time,
		Zone:            shared(nodetopology.GetZoneKey(node)),
		Unschedulable:   node.Spec.Unschedulable,
		Taints:          node.Spec.Taints,
		Conditions:      make([]v1.NodeCondition, 0, len(watched)),
	}

	_, n.Excluded = node.Labels[excludeDisruption]
	for _, c := range node.Status.Conditions {
		if _, ok := watched[c.Type]; ok {
			c.Type, c.Status, c.Reason, c.Message = shared(c.Type), shared(c.Status), shared(c.Reason), shared(c.Message)
			n.Conditions = append(n.Conditions, c)
		}
	}

	for stable, beta := range mirrored {
		if value, ok := node.Labels[stable]; ok && node.Labels[beta] != value {
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			n.Labels[stable] = value
		}
	}
	return n
}

// shared returns the copy of a string that all equal strings share. Most nodes have equal
// conditions.
func shared[S ~string](s S) S { return S(unique.Make(string(s)).Value()) }

// conditionOf returns the condition of that type, or nil.
func (n *Node) conditionOf(t v1.NodeConditionType) *v1.NodeCondition {
	return rules.Find(n.Conditions, func(c *v1.NodeCondition) bool { return c.Type == t })
}

// readyStatus returns the status of the Ready condition, or "" without one.
func (n *Node) readyStatus() v1.ConditionStatus {
	if c := n.conditionOf(v1.NodeReady); c != nil {
		return c.Status
	}
	return ""
}

// unknownConditions returns the conditions to write for a silent node, or nil if Ready is already
// Unknown. NetworkUnavailable is omitted, because the kubelet does not report it. Reasons and
// messages are the same as in upstream. LastHeartbeatTime stays as written by the kubelet; if the
// kubelet has never reported the condition, it is the node's creation time.
func (n *Node) unknownConditions(now time.Time) []v1.NodeCondition {
	if n.readyStatus() == v1.ConditionUnknown {
		return nil
	}
	var write []v1.NodeCondition
	for _, t := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		switch c := n.conditionOf(t); {
		case c == nil:
			write = append(write, v1.NodeCondition{
				Type:               t,
				Status:             v1.ConditionUnknown,
				Reason:             "NodeStatusNeverUpdated",
				Message:            "Kubelet never posted node status.",
				LastHeartbeatTime:  atSeconds(n.Created),
				LastTransitionTime: atSeconds(now),
			})
		case c.Status != v1.ConditionUnknown:
			changed := *c
			changed.Status = v1.ConditionUnknown
			changed.Reason = "NodeStatusUnknown"
			changed.Message = "Kubelet stopped posting node status."
			changed.LastTransitionTime = atSeconds(now)
			write = append(write, changed)
		}
	}

	return write
}

// mirroredLabels returns the beta labels to write to match the stable ones; empty if they match.
func (n *Node) mirroredLabels() map[string]string {
	write := map[string]string{}
	for stable, beta := range mirrored {
		if value, ok := n.Labels[stable]; ok && n.Labels[beta] != value {
			write[beta] = value
		}
	}
	return write
}
