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

// claimingGroup returns the pod's group, for which its claims may be reserved; nil if it has none,
// or if the cluster's table has no groups because the feature is off.
func claimingGroup(c *cluster.Cluster, pod *v1.Pod) *schedulingv1beta1.PodGroup {
	if c.PodGroups.Len() == 0 || pod.Spec.SchedulingGroup == nil || pod.Spec.SchedulingGroup.PodGroupName == nil {
		return nil
	}
	group, _ := c.PodGroups.Get(pod.Namespace, *pod.Spec.SchedulingGroup.PodGroupName)
	return group
}

// wasMadeFor returns an error if a claim was made from a template for neither the pod nor its group
// (nil if it has none). A group that had the same name before is another one.
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

// isReserved reports whether a claim is reserved for the holder already. UIDs are compared: names
// may be reused.
func isReserved(claim *resourcev1.ResourceClaim, holder resourcev1.ResourceClaimConsumerReference) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, isFor(holder.UID))
}

// ForGroup reports whether the claim is reserved for the pod's group, and not for the pod itself.
func (r *ReservedClaim) ForGroup() bool { return isGroup(r.Holder) }

// IsReserved reports whether a state of the claim has the reservation.
func (r *ReservedClaim) IsReserved(claim *resourcev1.ResourceClaim) bool {
	return isReserved(claim, r.Holder)
}

// GroupOf returns the pod group that a claim is reserved for, if it is the only one.
func GroupOf(claim *resourcev1.ResourceClaim) (holder resourcev1.ResourceClaimConsumerReference, ok bool) {
	if len(claim.Status.ReservedFor) != 1 || !isGroup(claim.Status.ReservedFor[0]) {
		return resourcev1.ResourceClaimConsumerReference{}, false
	}
	return claim.Status.ReservedFor[0], true
}
