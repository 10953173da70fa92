// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package claimcontrollers

import (
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// Claims simulates the controllers of ephemeral volumes and of claim templates, which create a
// pod's claims and delete them after the pod. All fields but StorageClass must be set.
type Claims struct {
	Cluster *cluster.Cluster
	// StorageClass is the default storage class, or nil.
	StorageClass *storagev1.StorageClass
	// Template returns the template with this name for device claims.
	Template func(namespace, name string) (*resourcev1.ResourceClaimTemplate, bool)
	// Show is called with each created object, and ShowGone is called with each deleted object.
	Show, ShowGone func(kind cycle.Kind, object metav1.Object)
}

// MakeFor creates the objects that controllers create for a pod before it can be scheduled: a claim
// for each ephemeral volume, and for each device claim template. It skips existing claims. It
// records the names of device claims in the pod's status, so it changes the pod.
func (c *Claims) MakeFor(p *v1.Pod) {
	for i := range p.Spec.Volumes {
		if ephemeral := p.Spec.Volumes[i].Ephemeral; ephemeral != nil && ephemeral.VolumeClaimTemplate != nil {
			c.volumeClaim(p, p.Spec.Volumes[i].Name, ephemeral.VolumeClaimTemplate)
		}
	}
	for i := range p.Spec.ResourceClaims {
		if p.Spec.ResourceClaims[i].ResourceClaimTemplateName != nil {
			c.deviceClaim(p, &p.Spec.ResourceClaims[i])
		}
	}
}

// volumeClaim creates the claim of an ephemeral volume, named POD-VOLUME.
func (c *Claims) volumeClaim(p *v1.Pod, volume string, template *v1.PersistentVolumeClaimTemplate) {
	name := p.Name + "-" + volume
	if _, there := c.Cluster.Claims.Get(p.Namespace, name); there {
		return
	}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: name, UID: p.UID + types.UID("/"+volume), CreationTimestamp: p.CreationTimestamp,
			Labels: template.Labels, Annotations: template.Annotations, OwnerReferences: ownedBy(p),
		},
		Spec:   template.Spec,
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	admission.Claim(claim, c.StorageClass)
	c.Show(cycle.Claims, claim)
}

// Release deletes the claims of a pod's ephemeral volumes, and the volumes deleted with them, like
// the garbage collector after the pod's removal. A later pod of the same name gets new claims.
func (c *Claims) Release(p *v1.Pod) {
	all := c.Cluster
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].Ephemeral == nil {
			continue
		}
		claim, there := all.Claims.Get(p.Namespace, p.Name+"-"+p.Spec.Volumes[i].Name)
		// Keep a claim of that name that does not belong to the pod.
		if !there || !metav1.IsControlledBy(claim, p) {
			continue
		}
		c.ShowGone(cycle.Claims, claim)
		if volume, there := all.Volumes.Get("", claim.Spec.VolumeName); there &&
			volume.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete {
			c.ShowGone(cycle.Volumes, volume)
		}
	}
}

// deviceClaim creates the claim and records its name in the pod's status. If the template does not
// exist, deviceClaim creates no claim, and the pod stays pending. Pods of a group with the same
// claim share it. Upstream generates the name; here it is POD-CLAIM or GROUP-CLAIM, the same in
// every run.
func (c *Claims) deviceClaim(p *v1.Pod, of *v1.PodResourceClaim) {
	// The claim exists if the pod was read from an API server.
	for i := range p.Status.ResourceClaimStatuses {
		if p.Status.ResourceClaimStatuses[i].Name == of.Name {
			return
		}
	}

	name, owner := p.Name+"-"+of.Name, ownedBy(p)
	shared := false
	// The group's controller may already have created the claim, under another name.
	if g := c.sharingGroup(p, of); g != nil {
		name = g.Name + "-" + of.Name
		for i := range g.Status.ResourceClaimStatuses {
			if made := &g.Status.ResourceClaimStatuses[i]; made.Name == of.Name && made.ResourceClaimName != nil {
				name = *made.ResourceClaimName
			}
		}
		owner = []metav1.OwnerReference{*metav1.NewControllerRef(g, schedulingv1beta1.SchemeGroupVersion.WithKind("PodGroup"))}
		// The claim may have been created for another pod of the group.
		known, there := c.Cluster.ResourceClaims.Get(p.Namespace, name)
		shared = there && metav1.IsControlledBy(known, g)
	}

	if !shared {
		from, there := c.Template(p.Namespace, *of.ResourceClaimTemplateName)
		if !there {
			return
		}
		c.Show(cycle.ResourceClaims, &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: p.Namespace, Name: name, UID: owner[0].UID + types.UID("/"+of.Name), CreationTimestamp: p.CreationTimestamp,
				Labels: from.Spec.Labels, Annotations: from.Spec.Annotations, OwnerReferences: owner,
			},
			Spec: from.Spec.Spec,
		})
	}

	p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses,
		v1.PodResourceClaimStatus{Name: of.Name, ResourceClaimName: &name})
}

// sharingGroup returns the pod's group if it has the same claim. It returns nil if the claim
// belongs to the pod.
func (c *Claims) sharingGroup(p *v1.Pod, of *v1.PodResourceClaim) *schedulingv1beta1.PodGroup {
	g, there := c.Cluster.PodGroups.Get(p.Namespace, groups.NameOf(p))
	if !there {
		return nil
	}
	if holder, err := resourceclaim.BindTo(p, g, of); err != nil || holder.UID != g.UID {
		return nil
	}
	return g
}

// ownedBy returns the owner references of a pod's claim, so that the claim is deleted with the pod.
func ownedBy(p *v1.Pod) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(p, v1.SchemeGroupVersion.WithKind("Pod"))}
}
