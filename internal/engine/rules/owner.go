// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// The Kubernetes controllers that create pods, and Node, which owns static pods. A kind with the
// same name in another API group gets no special treatment.
var (
	Deployment            = appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind()
	ReplicaSet            = appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind()
	StatefulSet           = appsv1.SchemeGroupVersion.WithKind("StatefulSet").GroupKind()
	DaemonSet             = appsv1.SchemeGroupVersion.WithKind("DaemonSet").GroupKind()
	Job                   = batchv1.SchemeGroupVersion.WithKind("Job").GroupKind()
	ReplicationController = v1.SchemeGroupVersion.WithKind("ReplicationController").GroupKind()
	Node                  = v1.SchemeGroupVersion.WithKind("Node").GroupKind()
)

// KindOf returns the API group and kind of a controller, or the zero value. It drops the version:
// apps/v1 and apps/v1beta1 are one kind.
func KindOf(controller *metav1.OwnerReference) schema.GroupKind {
	if controller == nil {
		return schema.GroupKind{}
	}
	group, _, grouped := strings.Cut(controller.APIVersion, "/")
	if !grouped {
		group = "" // the core API has a version but no group
	}
	return schema.GroupKind{Group: group, Kind: controller.Kind}
}

// ControllerKind returns the API group and kind of an object's controller, or the zero value.
func ControllerKind(object metav1.Object) schema.GroupKind {
	return KindOf(metav1.GetControllerOfNoCopy(object))
}

// ControllerRef formats an object's controller as Kind/name, or returns "".
func ControllerRef(object metav1.Object) string {
	if controller := metav1.GetControllerOfNoCopy(object); controller != nil {
		return controller.Kind + "/" + controller.Name
	}
	return ""
}

// Owner identifies a controller by its UID within its namespace. Controllers find their pods in the
// same way. A hand-written reference may lack the UID; the controller is then identified by kind
// and name. The zero value is no controller. Owner is usable as a map key: objects of the same
// controller have equal Owners, unless only some of the references contain the UID.
type Owner struct {
	Namespace string
	UID       types.UID
	Kind      schema.GroupKind // Kind and Name are set only if there is no UID
	Name      string
}

// OwnerOf returns an object's controller. An object of another namespace may name the same
// controller, but is not one of its objects.
func OwnerOf(object metav1.Object) Owner {
	return OwnerBy(object.GetNamespace(), metav1.GetControllerOfNoCopy(object))
}

// OwnerBy returns the controller referenced by objects of a namespace.
func OwnerBy(namespace string, controller *metav1.OwnerReference) Owner {
	switch {
	case controller == nil:
		return Owner{}
	case controller.UID != "":
		return Owner{Namespace: namespace, UID: controller.UID}
	}
	return Owner{Namespace: namespace, Kind: KindOf(controller), Name: controller.Name}
}

// AsOwner returns the Owner of the objects created by the given controller, equal to the result of
// OwnerOf for these objects.
func AsOwner(kind schema.GroupKind, controller metav1.Object) Owner {
	if uid := controller.GetUID(); uid != "" {
		return Owner{Namespace: controller.GetNamespace(), UID: uid}
	}
	return Owner{Namespace: controller.GetNamespace(), Kind: kind, Name: controller.GetName()}
}

// Predecessor is a departing or departed pod that its controller replaces. Owner is empty for a pod
// without a controller, which has no successor.
type Predecessor struct {
	Namespace, Name string
	UID             types.UID
	Owner           types.UID // UID of its controller
}

// MayBeSucceededBy reports whether a pod can be the controller's replacement. The successor of a
// StatefulSet's pod has the same name. Pods of other controllers cannot be paired with their
// successors, so all new pods of the controller may be successors.
func (p Predecessor) MayBeSucceededBy(next *v1.Pod) bool {
	controller := metav1.GetControllerOfNoCopy(next)
	return controller != nil && controller.UID == p.Owner && p.Owner != "" && next.Namespace == p.Namespace && next.UID != p.UID &&
		(KindOf(controller) != StatefulSet || next.Name == p.Name)
}
