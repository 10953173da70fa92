package manifest

import (
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

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
		w := workloadOfStateful(set)
		w.at = e.set.places["StatefulSet"][i]
		for _, pod := range e.ownedPods(w) { // a pod's name says whether it is there
			if rules.IsTerminal(pod) && !rules.IsTerminating(pod) && len(pod.Finalizers) == 0 {
				e.removePod(pod) // the controller deletes it, and makes it again under its name
			}
		}
		first := FirstOrdinal(set)
		for ordinal := first; ordinal < first+min(int(*set.Spec.Replicas), mostPods); ordinal++ {
			name := set.Name + "-" + strconv.Itoa(ordinal)
			if e.names[types.NamespacedName{Namespace: set.Namespace, Name: name}] {
				continue
			}
			e.addPod(statefulPod(set, w, name, ordinal), w.at)
			for _, claim := range claimsOf(set, name) {
				id := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
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

// FirstOrdinal is the ordinal of the set's first pod.
func FirstOrdinal(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// StatefulPod is the pod of that ordinal that the StatefulSet's controller creates, with the claims
// that it creates first.
func StatefulPod(set *appsv1.StatefulSet, ordinal int) (*v1.Pod, []*v1.PersistentVolumeClaim) {
	name := set.Name + "-" + strconv.Itoa(ordinal)
	return statefulPod(set, workloadOfStateful(set), name, ordinal), claimsOf(set, name)
}

func workloadOfStateful(set *appsv1.StatefulSet) workload {
	return workload{gvk: appsv1.SchemeGroupVersion.WithKind("StatefulSet"), meta: &set.ObjectMeta, template: &set.Spec.Template}
}

func statefulPod(set *appsv1.StatefulSet, w workload, name string, ordinal int) *v1.Pod {
	pod := w.newPod()
	pod.Name, pod.Spec.Hostname, pod.Spec.Subdomain = name, name, set.Spec.ServiceName
	pod.Labels[appsv1.StatefulSetPodNameLabel] = name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
	// The set's claims precede the template's volumes, and replace those of the same name.
	var volumes []v1.Volume
	for i := range set.Spec.VolumeClaimTemplates {
		template := set.Spec.VolumeClaimTemplates[i].Name
		volumes = append(volumes, v1.Volume{Name: template, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: template + "-" + name},
		}})
	}
	for _, volume := range pod.Spec.Volumes {
		if !slices.ContainsFunc(volumes, func(v v1.Volume) bool { return v.Name == volume.Name }) {
			volumes = append(volumes, volume)
		}
	}
	pod.Spec.Volumes = volumes
	return pod
}

// claimsOf returns the claims of one pod of the set, with the labels that the set selects by.
func claimsOf(set *appsv1.StatefulSet, pod string) []*v1.PersistentVolumeClaim {
	var claims []*v1.PersistentVolumeClaim
	for i := range set.Spec.VolumeClaimTemplates {
		claim := set.Spec.VolumeClaimTemplates[i].DeepCopy()
		claim.Name, claim.Namespace = claim.Name+"-"+pod, set.Namespace
		if claim.Labels == nil {
			claim.Labels = map[string]string{}
		}
		if set.Spec.Selector != nil {
			maps.Copy(claim.Labels, set.Spec.Selector.MatchLabels)
		}
		prepareClaim(claim)
		claims = append(claims, claim)
	}
	return claims
}
