// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kubectl/pkg/util/qos"
)

// Priority returns the pod's priority, or 0 for a pod stored before a priority class could assign a
// priority.
func Priority(pod *v1.Pod) int32 { return corev1.PodPriority(pod) }

// QOS returns the QoS class in the pod's status or, if the status lacks the class, the result of
// ComputeQOS.
func QOS(pod *v1.Pod) v1.PodQOSClass { return qos.GetPodQOS(pod) }

// ComputeQOS returns the QoS class derived from the pod's requests and limits, regardless of its
// status.
func ComputeQOS(pod *v1.Pod) v1.PodQOSClass { return qos.ComputePodQOS(pod) }

// IsBestEffort reports whether ComputeQOS returns BestEffort, that is, whether the pod has no
// requests or limits for CPU and memory.
func IsBestEffort(pod *v1.Pod) bool {
	asks := func(of *v1.ResourceRequirements) bool {
		for _, list := range [2]v1.ResourceList{of.Requests, of.Limits} {
			for _, name := range [2]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
				if q, there := list[name]; there && !q.IsZero() {
					return true
				}
			}
		}
		return false
	}

	// Pod-level resources replace the containers' resources in the QoS class.
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return !asks(pod.Spec.Resources)
	}
	for _, list := range [2][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if asks(&list[i].Resources) {
				return false
			}
		}
	}
	return true
}

// PodCondition returns the condition of that type, or nil. It points into the status.
func PodCondition(status *v1.PodStatus, t v1.PodConditionType) *v1.PodCondition {
	return Find(status.Conditions, func(c *v1.PodCondition) bool { return c.Type == t })
}

// HasReadyCondition reports whether the pod's Ready condition is true. It returns false for a pod
// without the condition.
func HasReadyCondition(pod *v1.Pod) bool {
	c := PodCondition(&pod.Status, v1.PodReady)
	return c != nil && c.Status == v1.ConditionTrue
}

// IsTerminal reports whether the pod has run to its end. A terminal pod holds no resources, does
// not count for constraints, and is never scheduled or evicted.
func IsTerminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// IsTerminating reports whether the pod's deletion has begun. Until the deletion is complete, the
// pod still holds its resources.
func IsTerminating(pod *v1.Pod) bool { return pod.DeletionTimestamp != nil }

// IsSidecar reports whether an init container keeps running next to the containers. It applies only
// to spec.initContainers: elsewhere the field has another meaning.
func IsSidecar(container *v1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// HostPorts returns the ports with a host port that are in use while the pod runs: the ports of its
// sidecars and containers, in this order, or nil. Like upstream it ignores ports of other init
// containers.
func HostPorts(pod *v1.Pod) []v1.ContainerPort {
	var ports []v1.ContainerPort
	add := func(container *v1.Container) {
		for _, port := range container.Ports {
			if port.HostPort > 0 {
				ports = append(ports, port)
			}
		}
	}

	for i := range pod.Spec.InitContainers {
		if IsSidecar(&pod.Spec.InitContainers[i]) {
			add(&pod.Spec.InitContainers[i])
		}
	}

	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// DeletionCost returns the value of a pod's annotation for the deletion cost, parsed as in the
// ReplicaSet controller. The cost is 0 if the value is not a 32-bit integer, or if it has a plus
// sign or a redundant leading zero. When a ReplicaSet shrinks, its pods with the lowest cost are
// deleted first. The cost may be negative.
func DeletionCost(p *v1.Pod) int32 {
	value := p.Annotations[v1.PodDeletionCost]
	cost, err := strconv.ParseInt(value, 10, 32)
	if err != nil || value[0] == '+' || value[0] == '0' {
		return 0
	}
	return int32(cost)
}
