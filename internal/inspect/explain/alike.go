package explain

import (
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// SameReason reports whether what is explained of one pending pod holds for the other: no
// plugin can tell them apart, and nothing else was decided about one of them alone. Pods
// from manifests have their turns one after the other, and a member of a pod group has a
// place of its own in it. One explanation then serves thousands of pods.
func SameReason(a, b simulate.Found) bool {
	return a.Pod != nil && b.Pod != nil && a.Pod.Class == b.Pod.Class && waitsLikeOthers(a) && waitsLikeOthers(b)
}

// waitsLikeOthers reports whether nothing but its class decides why a pod is pending.
// A nomination, a gate or a group belongs to one pod.
func waitsLikeOthers(f simulate.Found) bool {
	p := f.Object
	return simulate.Stored(p) && f.Refused == "" && f.Group == "" && p.DeletionTimestamp == nil &&
		p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) == 0 && p.Status.NominatedNodeName == ""
}
