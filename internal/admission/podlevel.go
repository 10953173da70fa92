package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// DefaultPodResources fills in, in place, what a pod with pod-level resources leaves out of them.
// The API server does it after admission, which may add containers and change theirs. A pod without
// such resources stays as it is.
func DefaultPodResources(pod *v1.Pod) {
	resources := pod.Spec.Resources
	if resources == nil || len(resources.Limits)+len(resources.Requests) == 0 {
		return
	}
	// The order matters: requests may follow from limits, and limits of what is requested come
	// last.
	limits := rules.PodLimits(pod, rules.OnlyContainers)
	defaultHugePages(resources, limits)
	defaultPodRequests(resources, rules.PodRequests(pod, rules.OnlyContainers))
	defaultPodLimits(pod, limits)
}

// isHugePages reports whether the resource is huge pages of some size.
func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// defaultHugePages limits the pod to the huge pages that its containers have together.
func defaultHugePages(resources *v1.ResourceRequirements, limits v1.ResourceList) {
	for name, sum := range limits {
		_, requested := resources.Requests[name]
		_, limited := resources.Limits[name]
		if isHugePages(name) && !requested && !limited {
			setAmount(&resources.Limits, name, sum.DeepCopy())
		}
	}
}

// defaultPodRequests requests the sum of the containers where they request any, else the limit.
// Huge pages are requested as they are limited.
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

// defaultPodLimits limits a resource that every container limits to their sum, or to what the pod
// requests if that is more.
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

// setAmount sets an amount, and makes the list if there is none.
func setAmount(list *v1.ResourceList, name v1.ResourceName, amount resource.Quantity) {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[name] = amount
}
