// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// DefaultPodResources sets, in place, missing pod-level requests and limits of a pod that has at
// least one pod-level request or limit. The API server does so after admission, because admission
// may add containers and change their resources. A pod without pod-level resources stays unchanged.
func DefaultPodResources(pod *v1.Pod) {
	resources := pod.Spec.Resources
	if resources == nil || len(resources.Limits)+len(resources.Requests) == 0 {
		return
	}
	// The order matters: limits, then requests, which may follow from limits, and finally limits
	// derived from requests.
	limits := rules.PodLimits(pod, rules.OnlyContainers)
	defaultHugePages(resources, limits)
	defaultPodRequests(resources, rules.PodRequests(pod, rules.OnlyContainers))
	defaultPodLimits(pod, limits)
}

// isHugePages reports whether the resource is huge pages of some size.
func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// defaultHugePages limits the pod to the sum of its containers' huge pages.
func defaultHugePages(resources *v1.ResourceRequirements, limits v1.ResourceList) {
	for name, sum := range limits {
		_, requested := resources.Requests[name]
		_, limited := resources.Limits[name]
		if isHugePages(name) && !requested && !limited {
			setAmount(&resources.Limits, name, sum.DeepCopy())
		}
	}
}

// defaultPodRequests sets requests to the sum of the containers' requests, or to the limit if no
// container has a request. Requests for huge pages equal their limits.
func defaultPodRequests(resources *v1.ResourceRequirements, sums v1.ResourceList) {
	for name, sum := range sums {
		if _, requested := resources.Requests[name]; !requested && helper.IsSupportedPodLevelResource(name) && !isHugePages(name) {
			setAmount(&resources.Requests, name, sum.DeepCopy())
		}
	}
	for name, limit := range resources.Limits {
		if _, requested := resources.Requests[name]; !requested && helper.IsSupportedPodLevelResource(name) {
			setAmount(&resources.Requests, name, limit.DeepCopy())
		}
	}
}

// defaultPodLimits limits a resource limited by every container to the sum of their limits, or to
// the pod's request if that is higher.
func defaultPodLimits(pod *v1.Pod, sums v1.ResourceList) {
	resources := pod.Spec.Resources
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for name, request := range resources.Requests {
		_, limited := resources.Limits[name]
		open := func(c v1.Container) bool { _, ok := c.Resources.Limits[name]; return !ok }
		sum, summed := sums[name]
		if limited || !summed || !helper.IsSupportedPodLevelResource(name) || slices.ContainsFunc(containers, open) {
			continue
		}
		// A limit below the request would be refused.
		if request.Cmp(sum) > 0 {
			sum = request
		}
		setAmount(&resources.Limits, name, sum.DeepCopy())
	}
}

// setAmount sets an amount, and allocates a nil list.
func setAmount(list *v1.ResourceList, name v1.ResourceName, amount resource.Quantity) {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[name] = amount
}
