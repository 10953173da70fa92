// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// SameReason reports whether the explanation of one pending pod is valid for the other. One
// explanation may thus serve thousands of pods. Both pods must belong to one class, and nothing
// else may affect only one of them. It excludes pods from manifests, which are placed one after the
// other, and members of a pod group, because each has a separate place in the group.
func SameReason(a, b simulate.Found) bool {
	return a.Pod != nil && b.Pod != nil && a.Pod.Class == b.Pod.Class && waitsLikeOthers(a) && waitsLikeOthers(b)
}

// waitsLikeOthers reports whether only the pod's class determines why it is pending. A nomination,
// a gate or a group concerns a single pod.
func waitsLikeOthers(f simulate.Found) bool {
	p := f.Object
	return simulate.Stored(p) && f.Refused == "" && f.Group == "" && p.DeletionTimestamp == nil &&
		p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) == 0 && p.Status.NominatedNodeName == ""
}
