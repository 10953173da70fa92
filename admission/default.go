package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
)

// Default fills in, in place, what the API server would while it decodes a
// pod, as far as scheduling depends on it: requests from limits, restart
// policy, grace period, scheduler name, ports, volumes without a source.
func Default(pod *v1.Pod) {
	containers := slices.Concat(pointers(pod.Spec.Containers), pointers(pod.Spec.InitContainers))
	for _, c := range containers {
		defaultRequests(&c.Resources)
		defaultPorts(c.Ports, pod.Spec.HostNetwork)
	}
	if pod.Spec.Resources != nil {
		defaultHugePages(pod)
		defaultPodRequests(pod)
		roundUp(pod.Spec.Resources.Limits)
		roundUp(pod.Spec.Resources.Requests)
	}
	// After the sums over containers, which are taken before rounding.
	for _, c := range containers {
		roundUp(c.Resources.Limits)
		roundUp(c.Resources.Requests)
	}
	roundUp(pod.Spec.Overhead)
	DefaultSpec(&pod.Spec)
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].VolumeSource == (v1.VolumeSource{}) {
			pod.Spec.Volumes[i].EmptyDir = &v1.EmptyDirVolumeSource{}
		}
	}
}

func pointers[T any](list []T) []*T {
	result := make([]*T, len(list))
	for i := range list {
		result[i] = &list[i]
	}
	return result
}

// DefaultSpec is the part of Default that pod templates get as well.
func DefaultSpec(spec *v1.PodSpec) {
	if spec.DNSPolicy == "" {
		spec.DNSPolicy = v1.DNSClusterFirst
	}
	if spec.RestartPolicy == "" {
		spec.RestartPolicy = v1.RestartPolicyAlways
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &v1.PodSecurityContext{}
	}
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = ptrTo(int64(v1.DefaultTerminationGracePeriodSeconds))
	}
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

func defaultPorts(ports []v1.ContainerPort, hostNetwork bool) {
	for i := range ports {
		if ports[i].Protocol == "" {
			ports[i].Protocol = v1.ProtocolTCP
		}
		if hostNetwork && ports[i].HostPort == 0 {
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
	for name, sum := range helper.AggregateContainerLimits(pod, helper.PodResourcesOptions{}) {
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
	for name, sum := range helper.AggregateContainerRequests(pod, helper.PodResourcesOptions{}) {
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
