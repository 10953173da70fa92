// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

// Requests returns a pending pod's request, which the NodeResourcesFit filter compares with the
// free room of a node. It is the sum of the containers and sidecars or the peak of the init
// containers, whichever is larger, plus overhead. Pod-level resources, if given, replace the
// resources of containers. The pod's status does not count, because a pending pod has not been
// actuated.
func Requests(pod *v1.Pod) v1.ResourceList {
	return PodRequests(pod, helper.PodResourcesOptions{})
}

// RequestsPlaced returns the amounts that a pod takes from its node. During a resize, the amount of
// each resource is the largest of the pod's desired, allocated and actuated requests. Desired
// requests do not count after the resize has been found infeasible. NodeResourcesBalancedAllocation
// uses RequestsPlaced for the pending pod as well; for a pending pod it equals Requests.
func RequestsPlaced(pod *v1.Pod) v1.ResourceList {
	return PodRequests(pod, placed)
}

// ScoreRequests returns a pending pod's request as seen by the NodeResourcesFit score: each
// container, init container and sidecar without a request for cpu or memory counts with 100m or
// 200Mi. An explicit 0 stays 0. Pod-level requests do not count, because upstream's scorer ignores
// them, and scores must match. They count only for the filter, and for placed pods.
func ScoreRequests(pod *v1.Pod) v1.ResourceList {
	return PodRequests(pod, helper.PodResourcesOptions{
		SkipPodLevelResources:       true,
		NonMissingContainerRequests: v1.ResourceList{v1.ResourceCPU: defaultCPU, v1.ResourceMemory: defaultMemory},
	})
}

// ScoreRequestsPlaced returns a placed pod's amounts as seen by the NodeResourcesFit score. They
// differ from RequestsPlaced only in cpu and memory, by the defaults of ScoreRequests. With
// pod-level requests, a container gets a default only for a resource that the pod does not request
// anywhere.
func ScoreRequestsPlaced(pod *v1.Pod) v1.ResourceList {
	opts := placed
	opts.NonMissingContainerRequests = v1.ResourceList{v1.ResourceCPU: defaultCPU, v1.ResourceMemory: defaultMemory}
	if helper.IsPodLevelRequestsSet(pod) {
		for name := range RequestsPlaced(pod) {
			delete(opts.NonMissingContainerRequests, name)
		}
	}
	return PodRequests(pod, opts)
}

// PlainRequests sums up the requested CPU (in thousandths) and memory of a plain pod without the
// helper's maps. A plain pod has only containers, which request nothing except CPU and memory.
// scoreCPU and scoreMemory are its ScoreRequests. ok is false for all other pods.
func PlainRequests(pod *v1.Pod) (cpu, memory, scoreCPU, scoreMemory int64, ok bool) {
	spec := &pod.Spec
	// Pods with a resize, or with fields that the library combines with the sum, are not plain.
	if len(spec.InitContainers) > 0 || spec.Overhead != nil || spec.Resources != nil || len(pod.Status.ContainerStatuses) > 0 ||
		pod.Status.Resources != nil || pod.Status.AllocatedResources != nil || helper.IsPodResizeInfeasible(pod) {
		return 0, 0, 0, 0, false
	}

	// As in the library, quantities are summed up before rounding.
	var sums, scores [2]resource.Quantity
	for i := range spec.Containers {
		requests := spec.Containers[i].Resources.Requests
		named := 0
		for k, name := range [2]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			if quantity, has := requests[name]; has {
				named++
				sums[k].Add(quantity)
				scores[k].Add(quantity)
			} else {
				scores[k].Add([2]resource.Quantity{defaultCPU, defaultMemory}[k])
			}
		}
		// The container requests further resources.
		if named < len(requests) {
			return 0, 0, 0, 0, false
		}
	}

	return Amount(v1.ResourceCPU, sums[0]), Amount(v1.ResourceMemory, sums[1]), Amount(v1.ResourceCPU, scores[0]),
		Amount(v1.ResourceMemory, scores[1]), true
}

// placed holds the options of kube-scheduler v1.37 for pods on a node: the gates
// InPlacePodVerticalScaling, PodLevelResources and InPlacePodLevelResourcesVerticalScaling are on
// by default, and the gate DRANodeAllocatableResources is off.
var placed = helper.PodResourcesOptions{
	UseStatusResources: true,
	InPlacePodLevelResourcesVerticalScalingEnabled: true,
}

// When nodes are scored, these requests are assumed for a container without requests, so that nodes
// with many such pods do not seem free. The values are upstream's
// (pkg/scheduler/util/pod_resources.go), chosen arbitrarily in 2015.
var (
	defaultCPU    = *resource.NewMilliQuantity(100, resource.DecimalSI)
	defaultMemory = *resource.NewQuantity(200<<20, resource.DecimalSI)
)

// Amount returns a quantity in the units of decisions: CPU in thousandths, everything else in ones,
// rounded up. It saturates at the largest int64, which no node can exceed. (For larger quantities,
// Quantity.Value and MilliValue return 0 or wrap around, which would turn an excessive request into
// an empty request.)
//
//	cpu 1500m -> 1500    cpu 0.5m -> 1    memory 1Ki -> 1024    memory 1500m -> 2
func Amount(name v1.ResourceName, quantity resource.Quantity) int64 {
	whole, most := int64(1), int64(math.MaxInt64)
	if name == v1.ResourceCPU {
		whole, most = 1000, most/1000
	}
	// Comparing quantities is the most expensive step, and most quantities are whole numbers.
	if v, ok := quantity.AsInt64(); ok && -most <= v && v <= most {
		return v * whole
	}
	switch {
	case quantity.Sign() >= 0 && quantity.CmpInt64(most) > 0:
		return math.MaxInt64
	case quantity.Sign() < 0 && quantity.CmpInt64(-most) < 0:
		return -math.MaxInt64
	case name == v1.ResourceCPU:
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// Sum adds amounts and saturates at the largest and the lowest int64. A saturated sum does not
// support subtraction: it must be recomputed from the remaining amounts.
func Sum(a, b int64) int64 {
	sum := a + b
	switch {
	case b > 0 && sum < a:
		return math.MaxInt64
	case b < 0 && sum > a:
		return -math.MaxInt64
	}
	return sum
}
