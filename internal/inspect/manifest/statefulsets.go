// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// statefulSets creates the missing pods of all StatefulSets, each named after its ordinal, and
// their claims. Like the controller, it reuses existing claims, so that a pod keeps its volume.
func (e *expansion) statefulSets() {
	class := admission.DefaultStorageClass(e.set.StorageClasses)
	claims := map[types.NamespacedName]bool{}
	for _, claim := range e.set.PersistentVolumeClaims {
		claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = true
	}
	for i, set := range e.set.StatefulSets {
		if set.DeletionTimestamp != nil {
			continue
		}
		w := expanded{workload.Of(set), e.set.places["StatefulSet"][i]}
		for _, pod := range e.ownedPods(w) { // the loop below looks up the remaining pods by name
			if rules.IsTerminal(pod) && !rules.IsTerminating(pod) && len(pod.Finalizers) == 0 {
				e.removePod(pod) // the controller replaces it under the same name
			}
		}
		// Create the lowest missing ordinals: pods are identified by name, whatever created them.
		first := workload.FirstOrdinal(set)
		for ordinal := first; ordinal < first+min(int(*set.Spec.Replicas), workload.Most); ordinal++ {
			pod, own := workload.StatefulPod(set, ordinal)
			if e.names[types.NamespacedName{Namespace: set.Namespace, Name: pod.Name}] {
				continue
			}
			e.addPod(pod, w.at)
			for _, claim := range own {
				id := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
				// Two sets share a claim's name only by mistake; create the claim once.
				if !claims[id] {
					claims[id] = true
					admission.Claim(claim, class)
					e.set.PersistentVolumeClaims = append(e.set.PersistentVolumeClaims, claim)
					e.set.places["PersistentVolumeClaim"] = append(e.set.places["PersistentVolumeClaim"], w.at)
				}
			}
		}
	}
}
