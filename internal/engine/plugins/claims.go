package plugins

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// What the volume plugins share: how a pod's volumes lead to claims, and claims to volumes.

// Annotations on claims and volumes: that binding is complete, that the controller or the scheduler
// chose the volume rather than a user, and the node for which a volume is to be provisioned.
const (
	annBindCompleted     = "pv.kubernetes.io/bind-completed"
	annBoundByController = "pv.kubernetes.io/bound-by-controller"
	annSelectedNode      = "volume.kubernetes.io/selected-node"
)

// claimOf returns the name of the claim behind a pod's volume; ok is false if there is none. The
// claim of an ephemeral volume is made for the one pod, and named after pod and volume.
func claimOf(p *cluster.Pod, v *v1.Volume) (name string, isEphemeral, ok bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, false, true
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}, v), true, true
	}
	return "", false, false
}

// madeFor returns an error if the claim named like that of an ephemeral volume was not made for the
// pod: somebody else's claim may have that name by accident, and must not be used.
func madeFor(p *cluster.Pod, claim *v1.PersistentVolumeClaim) error {
	return ephemeral.VolumeIsForPod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace(), Name: p.Name, UID: p.UID}}, claim)
}

// claimClass returns the name of a claim's storage class, or "". The annotation of before
// Kubernetes 1.6 still comes first.
func claimClass(claim *v1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// volumeClass returns the name of a volume's storage class, or "".
func volumeClass(volume *v1.PersistentVolume) string {
	if class, ok := volume.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return volume.Spec.StorageClassName
}

// fullyBound reports whether a claim and its volume are bound to each other: the volume controller
// sets the annotation last.
func fullyBound(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, annBindCompleted)
}

// claimNotFound is the API server's message.
func claimNotFound(name string) string {
	return fmt.Sprintf("persistentvolumeclaim %q not found", name)
}

// volumeNotFound and storageClassNotFound are the same for volumes and storage classes, which have
// no namespace.
func volumeNotFound(name string) string { return fmt.Sprintf("persistentvolume %q not found", name) }
func storageClassNotFound(name string) string {
	return fmt.Sprintf("storageclass.storage.k8s.io %q not found", name)
}
