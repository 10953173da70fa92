// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/world/disruption"
)

// silenceNode makes a node's kubelet stop responding. The node's last renewal is delivered with its
// original time, so the silence is not noticed until the grace period is over.
func (h *health) silenceNode(name string) {
	m := h.nodes.named[name]
	if m.dead {
		return
	}
	m.dead = true
	h.report.addEvent(Event{Kind: "NodeFailed", Node: name})
	// Node health ignores a node without reported conditions. Make all such nodes report from now
	// on, so that the failure is noticed and judged relative to the rest of the node's zone.
	if !m.isWatched() {
		h.reportReady(name)
	}
	if h.core != nil {
		h.showLease(name, lastRenewal(name, h.clock.now))
		h.extendAlert()
		h.unsettled = true
	}
}

// reportReady makes all nodes without reported conditions, as in hand-written manifests, report
// ready, unless their taints contradict it. Node health can then distinguish the failing node.
func (h *health) reportReady(failing string) {
	for _, name := range h.nodes.names() {
		m := h.nodes.named[name]
		if m.isWatched() || name != failing && slices.ContainsFunc(m.object.Spec.Taints, func(t v1.Taint) bool { return OfState(&t) }) {
			continue
		}
		h.nodes.changeNode(name, func(n *v1.Node) { setReady(n, v1.ConditionTrue, h.clock.time()) })
		if !m.dead {
			h.showLease(name, lastRenewal(name, h.clock.now))
		}
	}
}

// reviveNode makes a node report again: it is ready, and its other conditions that are Unknown
// become False. It ignores a healthy node.
func (h *health) reviveNode(name string) {
	m := h.nodes.named[name]
	if !m.dead && disruption.ReadinessOf(m.object) == v1.ConditionTrue {
		return
	}
	m.dead = false
	h.report.addEvent(Event{Kind: "NodeRecovered", Node: name})
	h.nodes.changeNode(name, func(n *v1.Node) {
		setReady(n, v1.ConditionTrue, h.clock.time())
		for i := range n.Status.Conditions {
			if c := &n.Status.Conditions[i]; c.Type != v1.NodeReady && c.Status == v1.ConditionUnknown {
				c.Status = v1.ConditionFalse
			}
		}
	})
	h.showLease(name, h.clock.now)
}

// setReady sets the node's Ready condition on behalf of its kubelet.
func setReady(n *v1.Node, status v1.ConditionStatus, now time.Time) {
	setCondition(n, v1.NodeCondition{
		Type: v1.NodeReady, Status: status, Reason: "KubeletReady", LastHeartbeatTime: metav1.NewTime(now),
		LastTransitionTime: metav1.NewTime(now),
	})
}

// setCondition sets a condition of the node and replaces an earlier one of its type. It modifies n.
func setCondition(n *v1.Node, c v1.NodeCondition) {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == c.Type {
			n.Status.Conditions[i] = c
			return
		}
	}
	n.Status.Conditions = append(n.Status.Conditions, c)
}
