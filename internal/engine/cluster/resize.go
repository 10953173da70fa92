// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResizeClass returns the class with which the deferred resize of a placed pod is decided. It
// requests the pod's CPU and memory after the resize, fits only on the pod's node, and has no
// further constraints: like upstream, a resize need not satisfy them again. The pod itself must be
// off its node during the decision.
func (c *Cluster) ResizeClass(object *v1.Pod) *PodClass {
	spec, status := &object.Spec, &object.Status
	resize := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: object.Namespace, Name: object.Name, UID: object.UID},
		Spec: v1.PodSpec{
			SchedulerName: spec.SchedulerName, Priority: spec.Priority, PreemptionPolicy: spec.PreemptionPolicy,
			Overhead: spec.Overhead, Resources: spec.Resources,
			InitContainers: resizedContainers(spec.InitContainers), Containers: resizedContainers(spec.Containers),
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchFields: []v1.NodeSelectorRequirement{
						{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{spec.NodeName}},
					},
				}}},
			}},
		},
		Status: v1.PodStatus{
			Conditions: status.Conditions, Resources: status.Resources, AllocatedResources: status.AllocatedResources,
			InitContainerStatuses: resizedStatuses(status.InitContainerStatuses),
			ContainerStatuses:     resizedStatuses(status.ContainerStatuses),
		},
	}
	return c.classes.classOf(resize)
}

// resizedContainers returns containers with nothing but their requests of CPU and memory.
func resizedContainers(list []v1.Container) (resized []v1.Container) {
	for i := range list {
		resized = append(resized, v1.Container{
			Name: list[i].Name, RestartPolicy: list[i].RestartPolicy,
			Resources: v1.ResourceRequirements{Requests: resizable(list[i].Resources.Requests)},
		})
	}
	return resized
}

// resizedStatuses returns statuses with nothing but their amounts of CPU and memory.
func resizedStatuses(list []v1.ContainerStatus) (resized []v1.ContainerStatus) {
	for i := range list {
		s := v1.ContainerStatus{Name: list[i].Name, AllocatedResources: resizable(list[i].AllocatedResources)}
		if actuated := list[i].Resources; actuated != nil {
			s.Resources = &v1.ResourceRequirements{Requests: resizable(actuated.Requests)}
		}
		resized = append(resized, s)
	}
	return resized
}

// resizable returns the resources that can be resized in place.
func resizable(list v1.ResourceList) (kept v1.ResourceList) {
	for _, name := range [2]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if amount, has := list[name]; has {
			if kept == nil {
				kept = v1.ResourceList{}
			}
			kept[name] = amount
		}
	}
	return kept
}
