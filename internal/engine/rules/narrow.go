// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// manyAmounts is the number of listed amounts above which dropping unused amounts is worthwhile.
const manyAmounts = 64

// RequestsOf adds up a pod's requests for some resources by a rule: Requests, ScoreRequests and
// similar rules, which add up each resource separately. It reads only the named resources of large
// pods, because a tenant's pod may list tens of thousands of amounts. The result may contain
// further resources.
func RequestsOf(pod *v1.Pod, rule func(*v1.Pod) v1.ResourceList, names ...v1.ResourceName) v1.ResourceList {
	if listedAmounts(pod) > manyAmounts {
		pod = narrowPod(pod, names)
	}
	return rule(pod)
}

// listedAmounts returns the number of amounts requested by the containers, over all names.
func listedAmounts(pod *v1.Pod) (sum int) {
	for _, list := range [2][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			sum += len(list[i].Resources.Requests)
		}
	}
	return sum
}

// narrowPod returns a copy of the pod with containers that request only these resources, in the
// same amounts. It keeps pod-level resources and overhead, which are separate lists. It drops
// limits, which the rules do not read.
func narrowPod(pod *v1.Pod, names []v1.ResourceName) *v1.Pod {
	less := *pod
	less.Spec.Containers = narrowContainers(pod.Spec.Containers, names)
	less.Spec.InitContainers = narrowContainers(pod.Spec.InitContainers, names)
	less.Status.ContainerStatuses = narrowStatuses(pod.Status.ContainerStatuses, names)
	less.Status.InitContainerStatuses = narrowStatuses(pod.Status.InitContainerStatuses, names)
	return &less
}

// narrowContainers keeps the other fields of a container read by the rules: its name, by which its
// status is found, and its restart policy, which makes it a sidecar.
func narrowContainers(list []v1.Container, names []v1.ResourceName) []v1.Container {
	all := make([]v1.Container, len(list))
	for i := range list {
		of := &list[i]
		all[i] = v1.Container{
			Name: of.Name, RestartPolicy: of.RestartPolicy,
			Resources: v1.ResourceRequirements{Requests: narrowAmounts(of.Resources.Requests, names)},
		}
	}
	return all
}

// narrowStatuses is the counterpart of narrowContainers for the allocated and actual resources of
// containers.
func narrowStatuses(list []v1.ContainerStatus, names []v1.ResourceName) []v1.ContainerStatus {
	all := slices.Clone(list)
	for i := range all {
		of := &all[i]
		of.AllocatedResources = narrowAmounts(of.AllocatedResources, names)
		if of.Resources != nil {
			of.Resources = &v1.ResourceRequirements{Requests: narrowAmounts(of.Resources.Requests, names)}
		}
	}
	return all
}

// narrowAmounts keeps some entries of a list. nil stays nil: the library distinguishes a status
// without amounts from a status with amounts of zero.
func narrowAmounts(all v1.ResourceList, names []v1.ResourceName) v1.ResourceList {
	if all == nil {
		return nil
	}
	less := v1.ResourceList{}
	for _, name := range names {
		if amount, has := all[name]; has {
			less[name] = amount
		}
	}
	return less
}
