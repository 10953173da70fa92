// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// SameReason reports whether the explanation of one pending pod holds for the other: both pods
// belong to one class, and no further decision concerns only one of them. It excludes pods from
// manifests, placed one after the other, and members of a pod group, each with its own place in it.
// One explanation then serves thousands of pods.
func SameReason(a, b simulate.Found) bool {
	return a.Pod != nil && b.Pod != nil && a.Pod.Class == b.Pod.Class && waitsLikeOthers(a) && waitsLikeOthers(b)
}

// waitsLikeOthers reports whether only its class decides why a pod is pending. A nomination, a gate
// or a group belongs to one pod.
func waitsLikeOthers(f simulate.Found) bool {
	p := f.Object
	return simulate.Stored(p) && f.Refused == "" && f.Group == "" && p.DeletionTimestamp == nil &&
		p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) == 0 && p.Status.NominatedNodeName == ""
}
