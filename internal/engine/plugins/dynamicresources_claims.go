// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// classLister provides the allocator with the cluster's device classes.
type classLister struct{ c *cluster.Cluster }

// List returns all classes, sorted by name.
func (l classLister) List() ([]*resourcev1.DeviceClass, error) { return l.c.DeviceClasses.All(), nil }

// Get fails for a class with a selector of an unknown kind, which would crash the allocator. For
// such a selector in a claim, the allocator itself returns the same error.
func (l classLister) Get(name string) (*resourcev1.DeviceClass, error) {
	class, ok := l.c.DeviceClasses.Get("", name)
	if !ok {
		return nil, apierrors.NewNotFound(resourcev1.Resource("deviceclass"), name)
	}
	for i := range class.Spec.Selectors {
		if class.Spec.Selectors[i].CEL == nil {
			return nil, fmt.Errorf("class %s, selector #%d: CEL expression empty (unsupported selector type?)", name, i)
		}
	}
	return class, nil
}

// Reserve implements [Reserver]. It allocates the node's offer to the pod's claims, and reserves
// the claims for the pod, or for its pod group. undo keeps earlier reservations for a group:
// another member may rely on them.
func (d *DynamicResources) Reserve(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (undo func(), err error) {
	reserved, give, err := d.ReserveClaims(c, p, n)
	if err != nil || give == nil {
		return func() {}, err
	}
	return func() { give(reserved.WasReserved) }, nil
}

// reservedClaims returns the claims changed by Reserve, in the state after the change. They are
// copies: reservedClaims modifies nothing in the cluster. Claims that are already allocated and
// reserved are included unchanged.
func (d *DynamicResources) reservedClaims(a *attempt, o *offer) ([]*resourcev1.ResourceClaim, error) {
	var changed []*resourcev1.ResourceClaim
	next := 0
	for i, claim := range a.claims {
		var allocation *resourcev1.AllocationResult
		if claim.Status.Allocation == nil && o.results != nil {
			allocation = &o.results[next]
			next++
		}
		if slices.Contains(a.claims[:i], claim) {
			continue // the claim is named twice, and keeps its first allocation
		}
		if claim == a.extended {
			if o.extended == nil || len(o.extended.Spec.Devices.Requests) == 0 {
				continue
			}
			claim = o.extended
		}
		claim = claim.DeepCopy()
		// The claim enters the cluster's table, which requires a unique name.
		if claim.Name == inMemoryName {
			claim.Name = generatedName(claim)
		}
		if allocation != nil {
			d.allocateClaim(claim, allocation)
		}
		if !isReserved(claim, a.holders[i]) {
			// The API server would refuse the update.
			if len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize {
				return nil, fmt.Errorf("resource claim %s/%s is reserved for %d pods already, which is the most that is allowed",
					claim.Namespace, claim.Name, len(claim.Status.ReservedFor))
			}
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, a.holders[i])
		}
		changed = append(changed, claim)
	}
	return changed, nil
}

// allocateClaim writes an allocation into a copy of a claim. The finalizer keeps the claim until
// its devices are released. AllocationTimestamp starts the timeout checked by givenUp; without a
// clock it is not set.
func (d *DynamicResources) allocateClaim(claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult) {
	if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
	}
	claim.Status.Allocation = allocation.DeepCopy()
	if d.Now != nil {
		claim.Status.Allocation.AllocationTimestamp = new(metav1.NewTime(d.Now()))
	}
}

// generatedName is a placeholder for the name generated later by the API server. It is
// deterministic for a pod, so that a replayed journal yields the same claims. It uses the alphabet
// and lengths of generated names in Kubernetes.
func generatedName(claim *resourcev1.ResourceClaim) string {
	const alphabet, suffix, longest = "bcdfghjklmnpqrstvwxz2456789", 5, 63
	h := fnv.New64a()
	h.Write([]byte(claim.UID))
	base := claim.GenerateName
	if len(base) > longest-suffix {
		base = base[:longest-suffix]
	}
	name := []byte(base)
	for sum := h.Sum64(); len(name) < len(base)+suffix; sum /= uint64(len(alphabet)) {
		name = append(name, alphabet[sum%uint64(len(alphabet))])
	}
	return string(name)
}

// unreserveClaims undoes Reserve's changes to the claims. Claims allocated before Reserve stay
// allocated, and so do claims now shared by another pod. It ignores a claim replaced in the
// meantime.
func (a *attempt) unreserveClaims(changed []*resourcev1.ResourceClaim) {
	for _, mine := range changed {
		claim, ok := a.c.ResourceClaims.Get(mine.Namespace, mine.Name)
		if !ok || claim.UID != mine.UID {
			continue
		}
		before := a.indexOf(mine)
		releaseClaim(a.c, claim, a.holders[before].UID, a.claims[before].Status.Allocation != nil)
	}
}

// indexOf returns the index in a.claims of a claim changed by Reserve.
func (a *attempt) indexOf(changed *resourcev1.ResourceClaim) int {
	return slices.IndexFunc(a.claims, func(b *resourcev1.ResourceClaim) bool {
		return b.UID == changed.UID && (b.Name == changed.Name || b.Name == inMemoryName)
	})
}

// ClaimsWithout returns the effect of a pod's deletion on claims, as applied by upstream's resource
// claim controller: a claim no longer reserved for any pod is deallocated, and a claim made for the
// pod is deleted.
func ClaimsWithout(c *cluster.Cluster, p *cluster.Pod) (changed, gone []*resourcev1.ResourceClaim) {
	if c.ResourceClaims.Len() == 0 {
		return nil, nil
	}

	for claim := range c.ResourceClaims.Each {
		switch owner := metav1.GetControllerOfNoCopy(claim); {
		case owner != nil && owner.UID == p.UID():
			gone = append(gone, claim)
		case slices.ContainsFunc(claim.Status.ReservedFor, isFor(p.UID())):
			if after, empty := Released(claim, p.UID()); empty {
				gone = append(gone, claim)
			} else {
				changed = append(changed, after)
			}
		}
	}
	byName := func(a, b *resourcev1.ResourceClaim) int { return cmp.Compare(a.Name, b.Name) } // all claims are in the pod's namespace
	slices.SortFunc(changed, byName)
	slices.SortFunc(gone, byName)
	return changed, gone
}

// Released returns a claim without the reservation of one pod or group. The loss of the last
// reservation deallocates the claim; a claim for extended resources then loses its purpose, and
// gone is true.
func Released(claim *resourcev1.ResourceClaim, uid types.UID) (without *resourcev1.ResourceClaim, gone bool) {
	without = claim.DeepCopy()
	without.Status.ReservedFor = slices.DeleteFunc(without.Status.ReservedFor, isFor(uid))
	if len(without.Status.ReservedFor) > 0 {
		return without, false
	}
	without.Status.Allocation, without.Status.Devices = nil, nil
	return without, without.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true"
}

// isFor selects the reservation of a pod or group.
func isFor(uid types.UID) func(resourcev1.ResourceClaimConsumerReference) bool {
	return func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == uid }
}

// releaseClaim removes one reservation of a claim. The loss of the last one deallocates the claim,
// unless keep is true because the claim was allocated before; a claim for extended resources then
// loses its purpose and is deleted.
func releaseClaim(c *cluster.Cluster, claim *resourcev1.ResourceClaim, uid types.UID, keep bool) {
	claim = claim.DeepCopy()
	claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, isFor(uid))
	if len(claim.Status.ReservedFor) == 0 && !keep {
		if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" {
			c.ResourceClaims.Delete(claim.Namespace, claim.Name)
			return
		}
		claim.Status.Allocation, claim.Status.Devices = nil, nil
	}
	c.ResourceClaims.Set(claim)
}

// ClaimReleaser decides at PostFilter whether a claim of a pod that fits nowhere can release its
// devices. The function unused returns true for a claim held by the pod's group if no other pod of
// the group uses the claim.
type ClaimReleaser interface {
	PostFilter(c *cluster.Cluster, p *cluster.Pod, unused func(*resourcev1.ResourceClaim) bool) (
		message string, change *resourcev1.ResourceClaim, remove bool,
	)
}

// PostFilter helps a pod that fits nowhere. It returns a claim to deallocate, so that the claim can
// be allocated again elsewhere. It chooses a claim whose devices are out of reach of some node, and
// which has no holder other than the pod or its pod group. If the pod group holds it, no other pod
// of the group may use it (unused). If there is no such claim, PostFilter returns the claim for
// extended resources left by an earlier attempt, for deletion. It returns upstream's message, and
// leaves the update or deletion of the claim to the caller.
func (d *DynamicResources) PostFilter(c *cluster.Cluster, p *cluster.Pod, unused func(*resourcev1.ResourceClaim) bool) (
	message string, change *resourcev1.ResourceClaim, remove bool,
) {
	if !needsDevices(c, p) {
		return "", nil, false
	}
	a := d.attemptFor(c, p)
	if a.err != nil || a.rejection != nil || len(a.claims) == 0 {
		return "", nil, false
	}

	// A claim with a real name was created by an earlier attempt, for a node where the pod was not
	// placed in the end.
	stale := a.extended != nil && a.extended.Name != inMemoryName
	for i, claim := range a.claims {
		if !a.unavailable[i].Load() || claim == a.extended {
			continue
		}
		// Only a claim without other holders may be released.
		reserved, holder := claim.Status.ReservedFor, a.holders[i]
		if len(reserved) == 0 || len(reserved) == 1 &&
			(reserved[0].UID == p.UID() || isGroup(holder) && reserved[0].UID == holder.UID && unused(claim)) {
			claim = claim.DeepCopy()
			claim.Status = resourcev1.ResourceClaimStatus{}
			return "deallocation of ResourceClaim completed", claim, false
		}
	}

	if stale {
		return "deletion of ResourceClaim completed", a.extended, true
	}
	return "", nil, false
}

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
