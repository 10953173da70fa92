// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-k8s/berth/internal/node/admit"
)

// Reason is the reason in an evicted pod's status and in the event about it.
const Reason = "Evicted"

// Eviction is the eviction of one pod. The caller emits the event, ends the processes, and writes
// the status.
type Eviction struct {
	Pod *v1.Pod
	// Signal is the cause, as named in the kubelet's metrics.
	Signal string
	// Grace is the pod's grace period in seconds.
	Grace int64
	// Message is the message of the status and the event.
	Message string
	// Annotations holds the annotations of the event.
	Annotations map[string]string
	// Disruption is set if the pod is evicted for the sake of other pods. Such a pod gets the
	// condition DisruptionTarget, so that a Job can distinguish the eviction from a failure. Victim
	// always sets it.
	Disruption bool
}

// immediately is the grace period, in seconds, of a pod evicted by a hard threshold.
const immediately = 1

// Victim returns the eviction of the first evictable pod in ranked, or nil if there is none.
// Static, mirror and system-critical pods are not evictable. Like the kubelet, it selects one pod
// at a time: the next measurement shows whether that was enough.
func Victim(s *Starved, ranked []Candidate) *Eviction {
	for _, c := range ranked {
		if admit.Critical(c.Pod) {
			continue
		}
		grace := int64(immediately)
		if !s.hard {
			grace = s.maxGrace
			if own := c.Pod.Spec.TerminationGracePeriodSeconds; own != nil {
				grace = min(grace, *own)
			}
		}
		message, annotations := explainEviction(s, c)
		return &Eviction{Pod: c.Pod, Signal: string(s.Signal), Grace: grace, Message: message, Annotations: annotations, Disruption: true}
	}
	return nil
}

// explainEviction returns the kubelet's message: the scarce resource, and the containers using more
// of it than requested. For pod-level requests of memory, it names the pod as well. The annotations
// match the kubelet's event.
func explainEviction(s *Starved, c Candidate) (message string, annotations map[string]string) {
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. ", s.Resource)
	fmt.Fprintf(&text, "Threshold quantity: %s, available: %s. ", &s.threshold, &s.available)
	annotations = map[string]string{}
	// The usage of the pod's containers is unknown.
	if c.Usage == nil {
		return text.String(), annotations
	}

	if s.Resource == v1.ResourceMemory && helper.IsPodLevelResourcesSet(c.Pod) && c.Usage.Memory != nil {
		if requested, found := c.Pod.Spec.Resources.Requests[s.Resource]; found {
			used := memoryUsed(c)
			fmt.Fprintf(&text, "Pod %s was using %s, request is %s, has larger consumption of %s. ", c.Pod.Name,
				&used, &requested, s.Resource)
			annotations["offending_pod"] = c.Pod.Name
			annotations["offending_pod_usage"] = used.String()
		}
	}

	var names, usages []string
	for _, usage := range c.Usage.Containers {
		requested, found := containerRequest(c.Pod, usage.Name, s.Resource)
		used, measured := containerUsed(&usage, s.Resource)
		// A container within its request is not named, even if it filled the node.
		if found && measured && used.Cmp(requested) > 0 {
			fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %s. ", usage.Name,
				&used, &requested, s.Resource)
			names, usages = append(names, usage.Name), append(usages, used.String())
		}
	}

	annotations["offending_containers"] = strings.Join(names, ",")
	annotations["offending_containers_usage"] = strings.Join(usages, ",")
	annotations["starved_resource"] = string(s.Resource)
	return text.String(), annotations
}

// containerRequest returns the request of one of the pod's containers. For a container without a
// request, found is true and the request is 0.
func containerRequest(pod *v1.Pod, name string, resourceName v1.ResourceName) (requested resource.Quantity, found bool) {
	for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if container.Name == name {
			return container.Resources.Requests[resourceName], true
		}
	}
	return requested, false
}

// containerUsed returns a container's use of memory or disk. The use of disk is known only if the
// use by both the writable layer and the logs is known.
func containerUsed(usage *stats.ContainerStats, name v1.ResourceName) (used resource.Quantity, measured bool) {
	switch name {
	case v1.ResourceMemory:
		if usage.Memory != nil && usage.Memory.WorkingSetBytes != nil {
			return toQuantity(usage.Memory.WorkingSetBytes, resource.BinarySI), true
		}
	case v1.ResourceEphemeralStorage:
		if usage.Rootfs != nil && usage.Rootfs.UsedBytes != nil && usage.Logs != nil && usage.Logs.UsedBytes != nil {
			sum := *usage.Rootfs.UsedBytes + *usage.Logs.UsedBytes
			return toQuantity(&sum, resource.BinarySI), true
		}
	}
	return used, false
}

// String describes the eviction for tests.
func (e Eviction) String() string {
	disruption := ""
	if e.Disruption {
		disruption = ", DisruptionTarget"
	}
	return fmt.Sprintf("evict %s by %s, grace %ds%s: %s", e.Pod.Name, e.Signal, e.Grace, disruption, e.Message)
}
