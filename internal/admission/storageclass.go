package admission

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// The annotations that mark the class for claims that name none.
const (
	defaultClassAnnotation     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClassAnnotation = "storageclass.beta.kubernetes.io/is-default-class"
)

// DefaultStorageClass is the class for claims that name none: of several marked as such the newest,
// and of equally old ones the first by name, as kube-apiserver. Nil is none. To mark another class
// is enough to change the default: the mark on the old one need not be removed first.
func DefaultStorageClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var found *storagev1.StorageClass
	for _, class := range classes {
		if class.Annotations[defaultClassAnnotation] != "true" && class.Annotations[betaDefaultClassAnnotation] != "true" {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&class.CreationTimestamp) ||
			found.CreationTimestamp.Equal(&class.CreationTimestamp) && class.Name < found.Name {
			found = class
		}
	}
	return found
}

// Claim gives a claim that names no class the default one, in place, as the API server does with
// new claims and the volume controller with old ones that are still without a volume. The empty
// name is a name: no class. Without a default class (nil) the claim stays as it is.
func Claim(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) {
	_, named := claim.Annotations[v1.BetaStorageClassAnnotation]
	if class == nil || named || claim.Spec.StorageClassName != nil || claim.Spec.VolumeName != "" {
		return
	}
	claim.Spec.StorageClassName = &class.Name
}
