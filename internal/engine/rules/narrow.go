package rules

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// manyAmounts is from how many listed amounts on it pays to leave out those that nobody asks for.
const manyAmounts = 64

// RequestsOf adds up what a pod requests of some resources by a rule: Requests, ScoreRequests and
// the like, which add up each resource by itself. A tenant's pod may list tens of thousands. The
// result may have others beside these.
func RequestsOf(pod *v1.Pod, rule func(*v1.Pod) v1.ResourceList, names ...v1.ResourceName) v1.ResourceList {
	if listedAmounts(pod) > manyAmounts {
		pod = narrowPod(pod, names)
	}
	return rule(pod)
}

// listedAmounts is how many amounts the containers request, of whatever has a name.
func listedAmounts(pod *v1.Pod) (sum int) {
	for _, list := range [2][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			sum += len(list[i].Resources.Requests)
		}
	}
	return sum
}

// narrowPod returns a pod whose containers request the same of these resources, and nothing else.
// What the pod has as a whole stays: pod-level resources and overhead, which are lists of their
// own. Limits are dropped, which the rules do not read.
func narrowPod(pod *v1.Pod, names []v1.ResourceName) *v1.Pod {
	less := *pod
	less.Spec.Containers = narrowContainers(pod.Spec.Containers, names)
	less.Spec.InitContainers = narrowContainers(pod.Spec.InitContainers, names)
	less.Status.ContainerStatuses = narrowStatuses(pod.Status.ContainerStatuses, names)
	less.Status.InitContainerStatuses = narrowStatuses(pod.Status.InitContainerStatuses, names)
	return &less
}

// narrowContainers keeps what the rules read of a container: its name finds its status, its restart
// policy makes it a sidecar.
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

// narrowStatuses does the same for what containers were allocated and have.
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

// narrowAmounts keeps some of a list. nil stays nil: to the library a status without amounts is not
// one of zeroes.
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
