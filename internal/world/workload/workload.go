// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Most is the maximum number of pods that workloads are expanded to, each and in total. It is
// several times the number of pods of a whole cluster in Kubernetes' tests. Any user with
// permission to create a Deployment may specify 2,000,000,000 replicas, whatever the namespace's
// quota.
const Most = 500_000

// Workload is a controller's object and the template of its pods. Template points into the object.
type Workload struct {
	Kind     schema.GroupVersionKind
	Object   metav1.Object
	Template *v1.PodTemplateSpec
	// Replicas is the wanted number of pods, with the API's default; nil for kinds without such a
	// field. It is a copy, so setting it does not change the object; see Resized.
	Replicas *int32
}

// Of returns an object as a workload; nil if it is not one. The object is not copied.
func Of(object metav1.Object) *Workload {
	apps := appsv1.SchemeGroupVersion.WithKind
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &Workload{apps("Deployment"), o, &o.Spec.Template, orOne(o.Spec.Replicas)}
	case *appsv1.ReplicaSet:
		return &Workload{apps("ReplicaSet"), o, &o.Spec.Template, orOne(o.Spec.Replicas)}
	case *appsv1.StatefulSet:
		return &Workload{apps("StatefulSet"), o, &o.Spec.Template, orOne(o.Spec.Replicas)}
	case *appsv1.DaemonSet:
		return &Workload{apps("DaemonSet"), o, &o.Spec.Template, nil}
	case *batchv1.Job:
		return &Workload{batchv1.SchemeGroupVersion.WithKind("Job"), o, &o.Spec.Template, nil}
	case *v1.ReplicationController:
		l := &Workload{v1.SchemeGroupVersion.WithKind("ReplicationController"), o, o.Spec.Template, orOne(o.Spec.Replicas)}
		if l.Template == nil { // it creates no pods
			l.Template, l.Replicas = &v1.PodTemplateSpec{}, new(int32)
		}
		return l
	}
	return nil
}

// orOne returns a copy of the number, or the API's default of one.
func orOne(n *int32) *int32 { return ptr.To(ptr.Deref(n, 1)) }

// ReplicasOf returns the field with a workload's wanted number of pods; nil for kinds without it.
func ReplicasOf(object metav1.Object) **int32 {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Replicas
	case *appsv1.ReplicaSet:
		return &o.Spec.Replicas
	case *appsv1.StatefulSet:
		return &o.Spec.Replicas
	case *v1.ReplicationController:
		return &o.Spec.Replicas
	}
	return nil
}

// Ref returns the workload's kind and name in the form Kind/name.
func (l *Workload) Ref() string { return l.Kind.Kind + "/" + l.Object.GetName() }

// Owner returns the result of [rules.OwnerOf] for the workload's pods.
func (l *Workload) Owner() rules.Owner { return rules.AsOwner(l.Kind.GroupKind(), l.Object) }

// Resized returns a copy of the workload's object with that number of replicas. The copy shares all
// other fields with the object. Kinds without replicas are returned unchanged.
func (l *Workload) Resized(replicas int) metav1.Object {
	n := int32(replicas)

	switch o := l.Object.(type) {
	case *appsv1.Deployment:
		d := *o
		d.Spec.Replicas = &n
		return &d
	case *appsv1.ReplicaSet:
		r := *o
		r.Spec.Replicas = &n
		return &r
	case *v1.ReplicationController:
		r := *o
		r.Spec.Replicas = &n
		return &r
	case *appsv1.StatefulSet:
		s := *o
		s.Spec.Replicas = &n
		return &s
	}

	return l.Object
}

// NewPod makes a pod from the template, without a name. It shares nothing with the template, and
// its labels are not nil.
func (l *Workload) NewPod() *v1.Pod {
	template := l.Template.DeepCopy()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.Object.GetNamespace(), Labels: template.Labels, Annotations: template.Annotations, Finalizers: template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.Object, l.Kind)},
		},
		Spec:   template.Spec,
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	return pod
}
