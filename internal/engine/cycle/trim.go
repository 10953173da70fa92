// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// podTrimmer decides which fields of pending pods the core keeps.
type podTrimmer struct {
	whole bool // pods are kept whole, for out-of-tree plugins
	specs latestSpecs
}

// trimPod returns the fields of a pending pod to keep. Pods of a class share the class's labels and
// its part of the spec, which would otherwise occupy two thirds of the scheduler's memory for ten
// thousand replicas. Out-of-tree plugins may read any field, so for them the pod is kept whole.
func (t *podTrimmer) trimPod(pod *v1.Pod, class *cluster.PodClass) *v1.Pod {
	if t.whole {
		return pod
	}
	m, spec := &pod.ObjectMeta, t.specOf(class)
	spec.Volumes, spec.ResourceClaims = pod.Spec.Volumes, pod.Spec.ResourceClaims
	spec.ActiveDeadlineSeconds = pod.Spec.ActiveDeadlineSeconds
	if !sameNames(spec.Containers, pod.Spec.Containers) || !sameNames(spec.InitContainers, pod.Spec.InitContainers) {
		spec.Containers, spec.InitContainers = pod.Spec.Containers, pod.Spec.InitContainers
	}

	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: class.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
			Labels: class.Labels.Map(), Annotations: m.Annotations, OwnerReferences: m.OwnerReferences,
		},
		Spec: spec, Status: pod.Status,
	}
}

// latestSpecs holds the specs of recently used classes, indexed by class modulo the number of
// entries. A small cache suffices for the pods of a class to share its containers, because they
// usually arrive together. Specs of very large classes are not kept, since their pods may already
// be deleted.
type latestSpecs [64]struct {
	class *cluster.PodClass
	spec  v1.PodSpec
}

// specOf returns the spec of a class as a pod spec. The value is copied; its pointers are shared by
// all pods of the class, and their targets must not be changed.
func (t *podTrimmer) specOf(class *cluster.PodClass) v1.PodSpec {
	if class.Bulk > cluster.MostBulk/len(t.specs) {
		return class.Spec.Object()
	}
	latest := &t.specs[uint32(class.ID)%uint32(len(t.specs))]
	if latest.class != class {
		latest.class, latest.spec = class, class.Spec.Object()
	}
	return latest.spec
}

// sameNames reports whether the containers have the same names: the name is the only field of a
// container that Berth writes and that the class does not determine.
func sameNames(a, b []v1.Container) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name {
			return false
		}
	}
	return true
}
