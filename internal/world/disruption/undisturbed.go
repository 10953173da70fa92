// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Annotations by which users prevent the movement of a pod. The only value of NeverAnnotation is
// "never". KarpenterAnnotation also applies to nodes.
const (
	NeverAnnotation      = "berth.dev/rebalance"
	KarpenterAnnotation  = "karpenter.sh/do-not-disrupt"
	AutoscalerAnnotation = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

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
