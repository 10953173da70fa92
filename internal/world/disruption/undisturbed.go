// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Annotations by which users prevent the movement of a pod. The only value of NeverAnnotation is
// "never". KarpenterAnnotation and ScaleDownAnnotation prevent the removal of a node.
const (
	NeverAnnotation      = "berth.dev/rebalance"
	KarpenterAnnotation  = "karpenter.sh/do-not-disrupt"
	AutoscalerAnnotation = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	ScaleDownAnnotation  = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
)

// KeptBy returns the annotation by which users prevent the removal of a node, or "".
func KeptBy(n *v1.Node) string {
	for _, key := range []string{KarpenterAnnotation, ScaleDownAnnotation} {
		if n.Annotations[key] == "true" {
			return key
		}
	}
	return ""
}

// WhyUndisturbed returns why Berth's own goals do not move a pod, wherever it runs, or "". With
// jobs, pods of Jobs may be moved.
func WhyUndisturbed(p *v1.Pod, now time.Time, jobs bool) string {
	switch {
	case p.Annotations[NeverAnnotation] == "never":
		return "it is annotated " + NeverAnnotation + ": never"
	case p.Annotations[AutoscalerAnnotation] == "false":
		return "it is annotated " + AutoscalerAnnotation + `: "false"`
	case mustNotDisturb(p, now):
		return "it is annotated " + KarpenterAnnotation
	case rules.ControllerKind(p) == rules.Job && !jobs:
		return "it belongs to a Job, whose work would start over"
	}
	return ""
}

// mustNotDisturb evaluates Karpenter's annotation: true, or a duration from the pod's start. A
// duration such as 4h protects a pod for that long; any other value does not protect.
func mustNotDisturb(p *v1.Pod, now time.Time) bool {
	value := p.Annotations[KarpenterAnnotation]
	if d, err := time.ParseDuration(value); err == nil {
		return AgeOf(p, now) < d
	}
	return value == "true"
}

// AgeOf returns the age of a pod: since its admission by the kubelet, or else since its creation; 0
// if both are unknown.
func AgeOf(p *v1.Pod, now time.Time) time.Duration {
	switch {
	case p.Status.StartTime != nil:
		return now.Sub(p.Status.StartTime.Time)
	case p.CreationTimestamp.IsZero():
		return 0
	}
	return now.Sub(p.CreationTimestamp.Time)
}

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
