package rules

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

// fewInitContainers are as many as the library adds up in good time: what it takes grows with the
// square of the init containers and the resources that they name.
const fewInitContainers = 16

// OnlyContainers are the options that add up containers, without what the pod has as a whole.
var OnlyContainers = helper.PodResourcesOptions{SkipPodLevelResources: true, ExcludeOverhead: true}

// PodRequests is the library's function of that name, and takes time in proportion to the pod.
func PodRequests(pod *v1.Pod, options helper.PodResourcesOptions) v1.ResourceList {
	pod, options = condensed(pod, options)
	return helper.PodRequests(pod, options)
}

// PodLimits is the library's function of that name, and takes time in proportion to the pod.
func PodLimits(pod *v1.Pod, options helper.PodResourcesOptions) v1.ResourceList {
	pod, options = condensed(pod, options)
	return helper.PodLimits(pod, options)
}

// condensed returns a pod that requests and is limited as the pod is, but has one container only,
// if it has more than a few init containers; else the pod itself.
func condensed(pod *v1.Pod, options helper.PodResourcesOptions) (*v1.Pod, helper.PodResourcesOptions) {
	if len(pod.Spec.InitContainers) <= fewInitContainers {
		return pod, options
	}
	one := *pod
	one.Spec.InitContainers, one.Status.ContainerStatuses, one.Status.InitContainerStatuses = nil, nil, nil
	one.Spec.Containers = []v1.Container{{Name: "all", Resources: v1.ResourceRequirements{
		Requests: aggregated(pod, options, helper.AggregateContainerRequests),
		Limits:   aggregated(pod, options, helper.AggregateContainerLimits),
	}}}
	options.NonMissingContainerRequests = nil // these count already
	return &one, options
}

// aggregated is what the library returns for a pod: the larger of the sum of containers and
// sidecars, and the peak while init containers run. The library is asked about each init container
// alone.
func aggregated(pod *v1.Pod, options helper.PodResourcesOptions, of func(*v1.Pod, helper.PodResourcesOptions) v1.ResourceList) v1.ResourceList {
	without := *pod
	without.Spec.InitContainers = nil
	sum := of(&without, options)

	statuses := statusesByName(pod)
	sidecars, peak := v1.ResourceList{}, v1.ResourceList{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		alone := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{*c}}}
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
		if status := statuses[c.Name]; sidecar && status != nil {
			alone.Status = v1.PodStatus{Conditions: pod.Status.Conditions, ContainerStatuses: []v1.ContainerStatus{*status}}
		}

		// What this container does not name is at its peak already.
		for name, amount := range of(alone, options) {
			if sidecar {
				add(sum, name, amount)
				add(sidecars, name, amount)
				amount = sidecars[name]
			} else {
				amount.Add(sidecars[name])
			}
			raise(peak, name, amount)
		}
	}
	for name, amount := range peak {
		raise(sum, name, amount)
	}
	return sum
}

func statusesByName(pod *v1.Pod) map[string]*v1.ContainerStatus {
	all := map[string]*v1.ContainerStatus{}
	for _, list := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			all[list[i].Name] = &list[i]
		}
	}
	return all
}

func add(list v1.ResourceList, name v1.ResourceName, amount resource.Quantity) {
	sum, has := list[name]
	if !has {
		list[name] = amount.DeepCopy()
		return
	}
	sum.Add(amount)
	list[name] = sum
}

func raise(list v1.ResourceList, name v1.ResourceName, amount resource.Quantity) {
	if before, has := list[name]; !has || amount.Cmp(before) > 0 {
		list[name] = amount.DeepCopy()
	}
}
