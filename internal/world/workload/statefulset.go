// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// FirstOrdinal returns the ordinal of the set's first pod: 0 unless spec.ordinals overrides it.
func FirstOrdinal(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// StatefulPod returns the pod created by the StatefulSet's controller for the ordinal, and the
// claims created before it. The pod uses existing claims unchanged; callers must check for them.
//
//	set db, ordinal 2, claim template data -> pod db-2, claim data-db-2
func StatefulPod(set *appsv1.StatefulSet, ordinal int) (*v1.Pod, []*v1.PersistentVolumeClaim) {
	name := OrdinalName(set, ordinal)
	pod := Of(set).NewPod()
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
	pod.Spec.Volumes = append(volumes, slices.DeleteFunc(pod.Spec.Volumes, func(volume v1.Volume) bool {
		return slices.ContainsFunc(volumes, func(v v1.Volume) bool { return v.Name == volume.Name })
	})...)
	return pod, claimsOf(set, name)
}

// claimsOf returns the claims of one pod of the set, with the labels of the set's selector.
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
		CompleteClaim(claim)
		claims = append(claims, claim)
	}
	return claims
}

// CompleteClaim completes a hand-written claim like the API server and the volume controller.
func CompleteClaim(claim *v1.PersistentVolumeClaim) {
	rules.SetDefault(&claim.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
	switch {
	case claim.Status.Phase != "":
	case claim.Spec.VolumeName == "":
		claim.Status.Phase = v1.ClaimPending
	default: // schedulers ignore a binding without the annotation
		claim.Status.Phase = v1.ClaimBound
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
	}
}

// OrdinalOf returns the ordinal of the set's pod of that name, or -1 if the name does not belong to
// the set. The ordinal may be beyond the set's replicas.
func OrdinalOf(set *appsv1.StatefulSet, name string) int {
	number, ok := strings.CutPrefix(name, set.Name+"-")
	ordinal, err := strconv.Atoi(number)
	if !ok || err != nil {
		return -1
	}
	return ordinal
}

// OrdinalName returns the name of the set's pod of that ordinal.
func OrdinalName(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

// InOrder reports whether the set creates and removes its pods sequentially, the API's default.
func InOrder(set *appsv1.StatefulSet) bool {
	return set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// HasReplica reports whether a pod of that name is among the set's replicas, given their number.
func HasReplica(set *appsv1.StatefulSet, name string, replicas int) bool {
	first, ordinal := FirstOrdinal(set), OrdinalOf(set, name)
	return first <= ordinal && ordinal < first+replicas
}

// KeepsRevision reports whether a rolling update keeps the set's pod of that ordinal at the old
// template, because the ordinal is below the partition, which counts from the first pod.
func KeepsRevision(set *appsv1.StatefulSet, ordinal int) bool {
	r := set.Spec.UpdateStrategy.RollingUpdate
	return r != nil && r.Partition != nil && ordinal < FirstOrdinal(set)+int(*r.Partition)
}
