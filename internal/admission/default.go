package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Default fills in, in place, what the API server does while it decodes a pod.
func Default(pod *v1.Pod) {
	containers := slices.Concat(pointers(pod.Spec.InitContainers), pointers(pod.Spec.Containers))
	for _, c := range containers {
		defaultRequests(&c.Resources)
		if pod.Spec.HostNetwork {
			defaultHostPorts(c.Ports)
		}
	}
	if pod.Spec.Resources != nil {
		defaultHugePages(pod)
		defaultPodRequests(pod)
		roundUp(pod.Spec.Resources.Limits)
		roundUp(pod.Spec.Resources.Requests)
	}
	for i := range pod.Spec.EphemeralContainers {
		containers = append(containers, (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for _, c := range containers {
		defaultContainer(c) // rounds amounts, which have been added up by now
	}
	for i := range pod.Spec.Volumes {
		defaultVolume(&pod.Spec.Volumes[i])
	}
	roundUp(pod.Spec.Overhead)
	defaultSpec(&pod.Spec)
}

func pointers[T any](list []T) []*T {
	result := make([]*T, len(list))
	for i := range list {
		result[i] = &list[i]
	}
	return result
}

func defaultSpec(spec *v1.PodSpec) {
	if spec.DNSPolicy == "" {
		spec.DNSPolicy = v1.DNSClusterFirst
	}
	if spec.RestartPolicy == "" {
		spec.RestartPolicy = v1.RestartPolicyAlways
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &v1.PodSecurityContext{}
	}
	setDefault(&spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	setDefault(&spec.EnableServiceLinks, v1.DefaultEnableServiceLinks)
	if spec.SchedulerName == "" {
		spec.SchedulerName = v1.DefaultSchedulerName
	}
}

func defaultRequests(r *v1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; set {
			continue
		}
		if r.Requests == nil {
			r.Requests = v1.ResourceList{}
		}
		r.Requests[name] = limit.DeepCopy()
	}
}

func defaultHostPorts(ports []v1.ContainerPort) {
	for i := range ports {
		if ports[i].HostPort == 0 {
			ports[i].HostPort = ports[i].ContainerPort
		}
	}
}

// roundUp makes amounts whole thousandths, the finest that the API stores.
func roundUp(list v1.ResourceList) {
	for name, quantity := range list {
		if !quantity.RoundUp(-3) {
			list[name] = quantity
		}
	}
}

// defaultHugePages gives a pod with pod-level resources the limit on huge
// pages that its containers have together.
func defaultHugePages(pod *v1.Pod) {
	resources := pod.Spec.Resources
	if len(resources.Limits)+len(resources.Requests) == 0 {
		return
	}
	for name, sum := range rules.PodLimits(pod, rules.OnlyContainers) {
		if !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			continue
		}
		_, requested := resources.Requests[name]
		_, limited := resources.Limits[name]
		if requested || limited {
			continue
		}
		if resources.Limits == nil {
			resources.Limits = v1.ResourceList{}
		}
		resources.Limits[name] = sum.DeepCopy()
	}
}

// defaultPodRequests gives a pod with pod-level limits the requests that go
// with them: the sum of its containers where they have any, else the limit.
func defaultPodRequests(pod *v1.Pod) {
	resources := pod.Spec.Resources
	if len(resources.Limits) == 0 {
		return
	}
	requests := resources.Requests
	if requests == nil {
		requests = v1.ResourceList{}
	}
	for name, sum := range rules.PodRequests(pod, rules.OnlyContainers) {
		hugePages := strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
		if _, set := requests[name]; !set && helper.IsSupportedPodLevelResource(name) && !hugePages {
			requests[name] = sum.DeepCopy()
		}
	}
	for name, limit := range resources.Limits {
		if _, set := requests[name]; !set && helper.IsSupportedPodLevelResource(name) {
			requests[name] = limit.DeepCopy()
		}
	}
	if len(requests) > 0 {
		resources.Requests = requests
	}
}
