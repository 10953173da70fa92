// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Annotations that mark the default class.
const (
	defaultClassAnnotation     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClassAnnotation = "storageclass.beta.kubernetes.io/is-default-class"
)

// DefaultStorageClass returns the class for claims without a class name, or nil. Among several
// classes marked as default it returns the newest, and among equally old ones the first by name,
// like kube-apiserver. To change the default, marking another class is enough; the old one need not
// be unmarked first.
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

// Claim gives a claim without a class name the default class, in place. The API server does so for
// new claims, and the volume controller for existing claims without a volume. An empty class name
// means no class, and stays. Without a default class (nil) the claim stays unchanged.
func Claim(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) {
	_, named := claim.Annotations[v1.BetaStorageClassAnnotation]
	if class == nil || named || claim.Spec.StorageClassName != nil || claim.Spec.VolumeName != "" {
		return
	}
	claim.Spec.StorageClassName = &class.Name
}
