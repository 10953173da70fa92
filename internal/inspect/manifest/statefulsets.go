package manifest

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// statefulSets makes the missing pods of all StatefulSets, each under the name of its
// ordinal, and the claims that these need. Claims that exist are used, as by the controller:
// that is how a pod finds its volume again.
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
		for _, pod := range e.ownedPods(w) { // a pod's name says whether it is there
			if rules.IsTerminal(pod) && !rules.IsTerminating(pod) && len(pod.Finalizers) == 0 {
				e.removePod(pod) // the controller deletes it, and makes it again under its name
			}
		}
		// The lowest ordinals that are missing are made: pods are known by their names,
		// whoever made them.
		first := workload.FirstOrdinal(set)
		for ordinal := first; ordinal < first+min(int(*set.Spec.Replicas), workload.Most); ordinal++ {
			pod, own := workload.StatefulPod(set, ordinal)
			if e.names[types.NamespacedName{Namespace: set.Namespace, Name: pod.Name}] {
				continue
			}
			e.addPod(pod, w.at)
			for _, claim := range own {
				id := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
				// Two sets may share a claim's name only by mistake; then it is made
				// once.
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
