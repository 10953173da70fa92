// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// claimingGroup returns the pod's group, a possible holder of its claims. It returns nil if the pod
// is not in a group, or the cluster's table of groups is empty because the feature is off.
func claimingGroup(c *cluster.Cluster, pod *v1.Pod) *schedulingv1beta1.PodGroup {
	if c.PodGroups.Len() == 0 || pod.Spec.SchedulingGroup == nil || pod.Spec.SchedulingGroup.PodGroupName == nil {
		return nil
	}
	group, _ := c.PodGroups.Get(pod.Namespace, *pod.Spec.SchedulingGroup.PodGroupName)
	return group
}

// wasMadeFor returns an error if a claim was made from a template for neither the pod nor its group
// (nil for a pod without a group). An earlier group of the same name is a different group.
func wasMadeFor(pod *v1.Pod, group *schedulingv1beta1.PodGroup, claim *resourcev1.ResourceClaim) error {
	if err := resourceclaim.IsForPod(pod, claim, group != nil); err != nil || metav1.IsControlledBy(claim, pod) {
		return err
	}
	return resourceclaim.IsForPodGroup(group, claim)
}

// podAsHolder is the entry in reservedFor for a pod.
func podAsHolder(pod *v1.Pod) resourcev1.ResourceClaimConsumerReference {
	return resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID}
}

// isGroup reports whether a claim is reserved for a pod group.
func isGroup(holder resourcev1.ResourceClaimConsumerReference) bool {
	return holder.APIGroup == schedulingv1beta1.GroupName && holder.Resource == "podgroups"
}

// isReserved reports whether a claim is already reserved for the holder. It compares UIDs, because
// names may be reused.
func isReserved(claim *resourcev1.ResourceClaim, holder resourcev1.ResourceClaimConsumerReference) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, isFor(holder.UID))
}

// ForGroup reports whether the claim is reserved for the pod's group rather than the pod itself.
func (r *ReservedClaim) ForGroup() bool { return isGroup(r.Holder) }

// IsReserved reports whether the given state of the claim has the reservation.
func (r *ReservedClaim) IsReserved(claim *resourcev1.ResourceClaim) bool {
	return isReserved(claim, r.Holder)
}

// GroupOf returns the pod group that is the claim's only holder.
func GroupOf(claim *resourcev1.ResourceClaim) (holder resourcev1.ResourceClaimConsumerReference, ok bool) {
	if len(claim.Status.ReservedFor) != 1 || !isGroup(claim.Status.ReservedFor[0]) {
		return resourcev1.ResourceClaimConsumerReference{}, false
	}
	return claim.Status.ReservedFor[0], true
}
