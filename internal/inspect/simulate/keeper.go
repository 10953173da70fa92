// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Exported view of a pod's owner: its controller and, above a ReplicaSet, the Deployment. A
// reference identifies an owner even if the object was not read.

// Owner is an object that creates pods, directly or through a controller.
type Owner struct {
	Kind, Name string
	// Object is nil if it was not read or its kind is not supported.
	Object metav1.Object
	// Template is the template of its pods; nil if Object is nil.
	Template *v1.PodTemplateSpec
}

// Ref returns the owner's reference, Kind/name.
func (o *Owner) Ref() string { return o.Kind + "/" + o.Name }

// Workload returns the owner's kubectl name, such as deployment/web.
func (o *Owner) Workload() string { return strings.ToLower(o.Kind) + "/" + o.Name }

// ControllerOf returns the controller of the pod, or nil. Its Object may be nil.
func (w *World) ControllerOf(p *v1.Pod) *Owner {
	return w.workloads.ownerBy(p.Namespace, metav1.GetControllerOfNoCopy(p))
}

// OwnerOf returns the owner by which users identify a pod: its controller or, if that is a
// ReplicaSet, the ReplicaSet's owner. It returns nil for a pod without a controller.
func (w *World) OwnerOf(p *v1.Pod) *Owner {
	owner := w.ControllerOf(p)
	if owner == nil || owner.Kind != "ReplicaSet" {
		return owner
	}
	if owner.Object != nil {
		return cmp.Or(w.ControlledBy(p.Namespace, owner), owner)
	}
	// The ReplicaSet was not read. Its name consists of the Deployment's name and the hash in the
	// pod's label, so it still identifies the Deployment.
	hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && hash != "" { // the Deployment controller's naming scheme
		owner = &Owner{Kind: "Deployment", Name: name}
		if l := w.workloads.table().Named(rules.Deployment, p.Namespace, name); l != nil {
			owner.Object, owner.Template = l.Object, l.Template
		}
	}
	return owner
}

// ControlledBy returns the controller of an owner, which manages the owner's template, or nil.
func (w *World) ControlledBy(namespace string, o *Owner) *Owner {
	if o.Object == nil {
		return nil
	}
	return w.workloads.ownerBy(namespace, metav1.GetControllerOfNoCopy(o.Object))
}

// ownerBy returns the owner identified by a reference in the namespace; nil without a reference.
func (w *workloads) ownerBy(namespace string, ref *metav1.OwnerReference) *Owner {
	if ref == nil {
		return nil
	}
	owner := &Owner{Kind: ref.Kind, Name: ref.Name}
	if l := w.table().OwnedBy(rules.OwnerBy(namespace, ref)); l != nil {
		owner.Object, owner.Template = l.Object, l.Template
	}
	return owner
}
