// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// checkBound verifies that a pod's node never changes after it is set, and that a newly bound pod
// fits on its node.
func (w *observer) checkBound(p *podSeen, before *v1.Pod, now time.Time) {
	node := p.pod.Spec.NodeName
	if node != "" && p.boundAt.IsZero() {
		p.boundAt = now
	}
	if before != nil && before.Spec.NodeName != "" {
		w.checks.addOne(boundOnce)
		if before.Spec.NodeName != node {
			w.reportOnce(boundOnce, podKey(p.pod), "pod %s went from node %s to %q", podKey(p.pod), before.Spec.NodeName, node)
		}
	}
	if node != "" && (before == nil || before.Spec.NodeName == "") {
		w.checkRoom(node, p)
	}
}
