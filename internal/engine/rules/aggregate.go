// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

// fewInitContainers is the number of init containers that the library adds up in acceptable time:
// its cost grows with the square of the number of init containers and of their named resources, and
// a tenant's pod has room for thousands of both.
const fewInitContainers = 16

// OnlyContainers are the options for adding up containers, without pod-level resources and
// overhead.
var OnlyContainers = helper.PodResourcesOptions{SkipPodLevelResources: true, ExcludeOverhead: true}

// PodRequests returns the result of the library's function PodRequests, in linear time. The result
// may share memory with the pod, so callers must not modify it.
func PodRequests(pod *v1.Pod, options helper.PodResourcesOptions) v1.ResourceList {
	condensed, options, sum := condensePod(pod, options, false)
	// The library combines pod-level requests with the requests of containers.
	if sum == nil || !options.SkipPodLevelResources && helper.IsPodLevelRequestsSet(pod) {
		return helper.PodRequests(condensed, options)
	}
	if !options.ExcludeOverhead {
		for name, amount := range pod.Spec.Overhead {
			addAmount(sum, name, amount)
		}
	}
	return sum
}

// PodLimits returns the result of the library's function PodLimits, in linear time.
func PodLimits(pod *v1.Pod, options helper.PodResourcesOptions) v1.ResourceList {
	condensed, options, _ := condensePod(pod, options, true)
	return helper.PodLimits(condensed, options)
}

// fewContainers and fewResources are the maximum numbers of containers, and of the amounts they
// list, that the library adds up fast enough.
const (
	fewContainers = 100
	fewResources  = 500
)

// condensePod returns a pod with the requests or limits of the given pod but only one container. It
// returns the pod itself if the pod has few containers. The library takes the largest of a pod's
// desired, allocated and actuated resources. If these may differ, condensePod adds up each of the
// three, and assigns all three sums to the one container. all is the sum over the containers if the
// three are equal, and nil otherwise.
//
//	init a: 3 CPU, sidecar b: 1 CPU, containers c: 1 CPU and d: 1 CPU
//	-> one container "all" of 3 CPU: max(b + c + d, a)
func condensePod(pod *v1.Pod, options helper.PodResourcesOptions, toLimits bool) (
	one *v1.Pod, with helper.PodResourcesOptions, all v1.ResourceList,
) {
	few := len(pod.Spec.InitContainers) <= fewInitContainers && len(pod.Spec.Containers) <= fewContainers
	if few && listedAmounts(pod) <= fewResources {
		return pod, options, nil
	}
	// Desired requests stop counting once the kubelet has refused the resize.
	infeasible := helper.IsPodResizeInfeasible(pod)
	requests := func(c *v1.Container, _ *v1.ContainerStatus) v1.ResourceList { return c.Resources.Requests }
	limits := func(c *v1.Container, _ *v1.ContainerStatus) v1.ResourceList { return c.Resources.Limits }
	desired := func(list v1.ResourceList) v1.ResourceList {
		if infeasible {
			return nil
		}
		return list
	}
	// The resources admitted by the kubelet, or the desired resources until the kubelet reports
	// them.
	allocated := func(c *v1.Container, s *v1.ContainerStatus) v1.ResourceList {
		if s != nil && s.AllocatedResources != nil {
			return s.AllocatedResources
		}
		return desired(c.Resources.Requests)
	}
	// The container's actual resources, or the admitted resources until the kubelet reports them.
	actuated := func(c *v1.Container, s *v1.ContainerStatus) v1.ResourceList {
		if s != nil && s.Resources != nil && s.Resources.Requests != nil {
			return s.Resources.Requests
		}
		return allocated(c, s)
	}
	limited := func(c *v1.Container, s *v1.ContainerStatus) v1.ResourceList {
		if s != nil && s.Resources != nil && s.Resources.Limits != nil {
			return s.Resources.Limits
		}
		return desired(c.Resources.Limits)
	}

	condensed, missing := *pod, options.NonMissingContainerRequests
	// The library adds the pod-wide amounts: overhead and pod-level resources.
	condensed.Spec.InitContainers, condensed.Status.InitContainerStatuses, condensed.Status.ContainerStatuses = nil, nil, nil
	asked, status := v1.ResourceRequirements{}, v1.ContainerStatus{Name: "all", Resources: &v1.ResourceRequirements{}}
	// Without statuses the three amounts are equal, and are added up once.
	same := !infeasible && len(pod.Status.InitContainerStatuses)+len(pod.Status.ContainerStatuses) == 0
	switch {
	case toLimits:
		asked.Limits = aggregateRequests(pod, nil, limits)
		if status.Resources.Limits = asked.Limits; !same {
			status.Resources.Limits = aggregateRequests(pod, nil, limited)
		}
	default:
		asked.Requests = aggregateRequests(pod, missing, requests)
		if status.AllocatedResources, status.Resources.Requests = asked.Requests, asked.Requests; !same {
			status.AllocatedResources = aggregateRequests(pod, missing, allocated)
			status.Resources.Requests = aggregateRequests(pod, missing, actuated)
		}
		if same {
			all = asked.Requests
		}
	}
	condensed.Spec.Containers = []v1.Container{{Name: "all", Resources: asked}}
	// The library reads statuses only with this option.
	if options.UseStatusResources {
		condensed.Status.ContainerStatuses = []v1.ContainerStatus{status}
	}
	options.NonMissingContainerRequests = nil // already counted
	return &condensed, options, all
}

// aggregateRequests returns the maximum of two amounts: the sum of containers and sidecars, and the
// peak while init containers run. Each container counts with the amounts returned by amountsOf, and
// with the amounts in missing for resources that it does not name. Init containers run one after
// the other, each together with the sidecars started before it:
//
//	init a: 3, sidecar b: 1, init c: 4, container d: 2
//	sum of b and d: 3; peak: max(a, b + c) = 5; result: 5
func aggregateRequests(pod *v1.Pod, missing v1.ResourceList, amountsOf func(*v1.Container, *v1.ContainerStatus) v1.ResourceList) v1.ResourceList {
	statuses := statusesByName(pod)
	has := func(c *v1.Container) v1.ResourceList {
		list := amountsOf(c, statuses[c.Name])
		if len(missing) == 0 {
			return list
		}
		full := maps.Clone(missing)
		maps.Copy(full, list)
		return full
	}
	// Add the containers before the missing amounts: merging these into each container would copy a
	// map per container.
	sum := make(v1.ResourceList, max(mostListed(pod.Spec.Containers), mostListed(pod.Spec.InitContainers)))
	for i := range pod.Spec.Containers {
		list := amountsOf(&pod.Spec.Containers[i], statuses[pod.Spec.Containers[i].Name])
		for name, amount := range list {
			addAmount(sum, name, amount)
		}
		for name, amount := range missing {
			if _, named := list[name]; !named {
				addAmount(sum, name, amount)
			}
		}
	}

	sidecar := func(c v1.Container) bool { return IsSidecar(&c) }
	if !slices.ContainsFunc(pod.Spec.InitContainers, sidecar) { // without sidecars a single container has the peak
		for i := range pod.Spec.InitContainers {
			for name, amount := range has(&pod.Spec.InitContainers[i]) {
				raiseAmount(sum, name, amount)
			}
		}
		return sum
	}

	sidecars, peak := v1.ResourceList{}, make(v1.ResourceList, mostListed(pod.Spec.InitContainers))
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		sidecar := IsSidecar(c)
		// The peak cannot change for resources that the container does not name.
		for name, amount := range has(c) {
			if sidecar {
				addAmount(sum, name, amount)
				addAmount(sidecars, name, amount)
				amount = sidecars[name]
			} else {
				amount = amount.DeepCopy()
				amount.Add(sidecars[name])
			}
			raiseAmount(peak, name, amount)
		}
	}
	for name, amount := range peak {
		raiseAmount(sum, name, amount)
	}
	return sum
}

// mostListed returns the largest number of resources listed by a container, as an estimate of the
// number of resources in the sum.
func mostListed(containers []v1.Container) (most int) {
	for i := range containers {
		most = max(most, len(containers[i].Resources.Requests), len(containers[i].Resources.Limits))
	}
	return most
}

// statusesByName returns the statuses of containers and init containers by name. Names are unique
// within a pod.
func statusesByName(pod *v1.Pod) map[string]*v1.ContainerStatus {
	all := map[string]*v1.ContainerStatus{}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range slices.Backward(list) {
			all[list[i].Name] = &list[i] // the first status with a name counts
		}
	}
	return all
}

// addAmount adds an amount to a list. It copies quantities, because the list is modified in place
// and the originals belong to the pod.
func addAmount(list v1.ResourceList, name v1.ResourceName, amount resource.Quantity) {
	sum, has := list[name]
	if !has {
		list[name] = amount.DeepCopy()
		return
	}
	sum.Add(amount)
	list[name] = sum
}

// raiseAmount raises an entry of a list to an amount, if it is lower.
func raiseAmount(list v1.ResourceList, name v1.ResourceName, amount resource.Quantity) {
	if before, has := list[name]; !has || amount.Cmp(before) > 0 {
		list[name] = amount.DeepCopy()
	}
}

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
