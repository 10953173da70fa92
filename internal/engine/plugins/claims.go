// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Helpers shared by the volume plugins. They look up the claims of a pod's volumes, and the volumes
// of claims.

// Annotations on claims and volumes. They mark completed binding, a volume chosen by the controller
// or the scheduler rather than a user, and the node for which a volume is provisioned.
const (
	annBindCompleted     = "pv.kubernetes.io/bind-completed"
	annBoundByController = "pv.kubernetes.io/bound-by-controller"
	annSelectedNode      = "volume.kubernetes.io/selected-node"
)

// claimOf returns the name of the claim behind a pod's volume; ok is false for volumes without a
// claim. The claim of an ephemeral volume belongs to a single pod, and is named after pod and
// volume.
func claimOf(p *cluster.Pod, v *v1.Volume) (name string, isEphemeral, ok bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, false, true
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name()}}, v), true, true
	}
	return "", false, false
}

// madeFor returns an error unless the claim was made for the pod. An unrelated claim may have the
// name of an ephemeral volume's claim by accident, and must not be used.
func madeFor(p *cluster.Pod, claim *v1.PersistentVolumeClaim) error {
	return ephemeral.VolumeIsForPod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace(), Name: p.Name(), UID: p.UID()}}, claim)
}

// claimClass returns the name of a claim's storage class, or "". The annotation used before
// Kubernetes 1.6 still takes precedence.
func claimClass(claim *v1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return ptr.Deref(claim.Spec.StorageClassName, "")
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

// volumeNotFound and storageClassNotFound are the API server's messages for volumes and storage
// classes, which are not namespaced.
func volumeNotFound(name string) string { return fmt.Sprintf("persistentvolume %q not found", name) }
