// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// ReadinessOf returns the status of a node's Ready condition; empty without one.
func ReadinessOf(n *v1.Node) v1.ConditionStatus {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == v1.NodeReady {
			return n.Status.Conditions[i].Status
		}
	}
	return ""
}

// HoldsPods reports whether deleted pods of a node stay in Terminating, because its kubelet, which
// would confirm their end, is silent. Until their end is confirmed, controllers that wait for it
// create no successor.
func HoldsPods(n *v1.Node) bool { return ReadinessOf(n) == v1.ConditionUnknown && !GivenUp(n) }

// GivenUp reports whether the pod garbage collector removes a node's terminating pods without
// waiting for the kubelet: the node is not ready, and a user has set the out-of-service taint.
func GivenUp(n *v1.Node) bool {
	return ReadinessOf(n) != v1.ConditionTrue &&
		slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeOutOfService })
}

// WhyHeld explains that pods stay on a silent node, and names the remedies.
func WhyHeld(node string) string {
	return fmt.Sprintf("node %s does not respond: its pods remain Terminating, and StatefulSet pods are not replaced, until it "+
		"responds, is deleted or is tainted out-of-service (if its machine is shut down: kubectl taint node %s %s=nodeshutdown:NoExecute)",
		node, node, v1.TaintNodeOutOfService)
}
