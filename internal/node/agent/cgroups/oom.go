package cgroups

import (
	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/admit"
)

const (
	guaranteedScore = -997
	bestEffortScore = 1000
)

// OOMScoreAdj is a container's oom_score_adj on a machine with this many bytes of memory. When
// memory runs out, the kernel kills Guaranteed pods last, BestEffort ones first, and Burstable ones
// the sooner, the less they request.
func OOMScoreAdj(pod *v1.Pod, container *v1.Container, memory int64) int64 {
	if pod.Spec.PriorityClassName == nodeCritical && admit.Critical(pod) {
		return guaranteedScore
	}
	switch rules.QOS(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteedScore
	case v1.PodQOSBestEffort:
		return bestEffortScore
	}
	extra := unassigned(pod)
	request := container.Resources.Requests.Memory().Value()
	if sidecar(pod, container) {
		// A sidecar is not killed before the containers that it serves.
		request = max(request, leastRequest(pod.Spec.Containers))
	}
	score := bestEffortScore - 1000*(request+extra)/memory
	// A Burstable pod ranks neither with the Guaranteed nor with the BestEffort ones.
	return min(max(score, 1000+guaranteedScore), bestEffortScore-1)
}

const nodeCritical = "system-node-critical"

// unassigned is a container's share of the memory that the pod requests as a whole beyond what its
// containers request.
func unassigned(pod *v1.Pod) int64 {
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	assigned := helper.AggregateContainerRequests(pod, helper.PodResourcesOptions{})
	left := pod.Spec.Resources.Requests.Memory().Value() - assigned.Memory().Value()
	return left / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}

func leastRequest(containers []v1.Container) int64 {
	least := containers[0].Resources.Requests.Memory().Value()
	for _, container := range containers[1:] {
		least = min(least, container.Resources.Requests.Memory().Value())
	}
	return least
}

func sidecar(pod *v1.Pod, container *v1.Container) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == container.Name {
			return container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways
		}
	}
	return false
}
