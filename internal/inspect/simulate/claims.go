package simulate

import (
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// claims creates what controllers create for a pod before it can be scheduled: a claim for each
// ephemeral volume, and for each device claim template. Existing claims are left alone.
func (w *World) claims(p *v1.Pod) {
	for i := range p.Spec.Volumes {
		if ephemeral := p.Spec.Volumes[i].Ephemeral; ephemeral != nil && ephemeral.VolumeClaimTemplate != nil {
			w.volumeClaim(p, p.Spec.Volumes[i].Name, ephemeral.VolumeClaimTemplate)
		}
	}
	for i := range p.Spec.ResourceClaims {
		if template := p.Spec.ResourceClaims[i].ResourceClaimTemplateName; template != nil {
			w.deviceClaim(p, p.Spec.ResourceClaims[i].Name, *template)
		}
	}
}

func (w *World) volumeClaim(p *v1.Pod, volume string, template *v1.PersistentVolumeClaimTemplate) {
	name := p.Name + "-" + volume
	if _, there := w.c.Claims.Get(p.Namespace, name); there {
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
	admission.Claim(claim, w.storageClass)
	w.scheduler.show(cycle.Claims, claim)
}

// identifyClaims gives new claims what the API server gives them: a UID and, if they name no
// storage class, the default one.
func (w *World) identifyClaims() {
	w.storageClass = admission.DefaultStorageClass(w.c.StorageClasses.All())
	for _, claim := range w.c.Claims.All() {
		if claim.UID == "" && claim.Spec.VolumeName == "" {
			claim = claim.DeepCopy()
			if w.storageClass != nil {
				admission.Claim(claim, w.storageClass)
			}
			claim.UID = types.UID("claim/" + claim.Namespace + "/" + claim.Name)
			w.scheduler.show(cycle.Claims, claim)
		}
	}
}

// deviceClaim creates the claim and records its name in the pod's status. Without the template, the
// pod waits for both.
func (w *World) deviceClaim(p *v1.Pod, name, template string) {
	for i := range p.Status.ResourceClaimStatuses {
		if p.Status.ResourceClaimStatuses[i].Name == name {
			return
		}
	}
	from := w.templates[Name{p.Namespace, template}]
	if from == nil {
		return
	}
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name + "-" + name, UID: p.UID + types.UID("/"+name), CreationTimestamp: p.CreationTimestamp,
			Labels: from.Spec.Labels, Annotations: from.Spec.Annotations, OwnerReferences: ownedBy(p),
		},
		Spec: from.Spec.Spec,
	}
	w.scheduler.show(cycle.ResourceClaims, claim)
	p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, v1.PodResourceClaimStatus{Name: name, ResourceClaimName: &claim.Name})
}

func ownedBy(p *v1.Pod) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(p, v1.SchemeGroupVersion.WithKind("Pod"))}
}
