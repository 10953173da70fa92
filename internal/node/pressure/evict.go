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

// Reason of an evicted pod's status and of the event about it.
const Reason = "Evicted"

// Eviction is the eviction of one pod.
type Eviction struct {
	Pod *v1.Pod
	// Signal that led to it, as the kubelet's metrics name it.
	Signal string
	// Grace is its grace period in seconds.
	Grace int64
	// Message of status and event.
	Message string
	// Annotations of the event.
	Annotations map[string]string
	// Disruption: it is evicted for others' sake, and gets the condition DisruptionTarget, so that
	// a Job can distinguish it from a failure. A pod that exceeds its own limits does not.
	Disruption bool
}

const immediately = 1

// Victim returns the first of the ranked pods that may be evicted: static, mirror and
// system-critical pods may not. Nil: none may.
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
		message, annotations := explain(s, c)
		return &Eviction{Pod: c.Pod, Signal: string(s.Signal), Grace: grace, Message: message, Annotations: annotations, Disruption: true}
	}
	return nil
}

// explain returns the kubelet's message: what was low, and which containers used more of it than
// they requested.
func explain(s *Starved, c Candidate) (message string, annotations map[string]string) {
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. ", s.Resource)
	fmt.Fprintf(&text, "Threshold quantity: %s, available: %s. ", &s.threshold, &s.available)
	annotations = map[string]string{}
	if c.Usage == nil {
		return text.String(), annotations
	}
	if s.Resource == v1.ResourceMemory && helper.IsPodLevelResourcesSet(c.Pod) && c.Usage.Memory != nil {
		if requested, found := c.Pod.Spec.Resources.Requests[s.Resource]; found {
			used := memoryUsed(c)
			fmt.Fprintf(&text, "Pod %s was using %s, request is %s, has larger consumption of %s. ", c.Pod.Name, &used, &requested, s.Resource)
			annotations["offending_pod"] = c.Pod.Name
			annotations["offending_pod_usage"] = used.String()
		}
	}
	var names, usages []string
	for _, usage := range c.Usage.Containers {
		requested, found := containerRequest(c.Pod, usage.Name, s.Resource)
		used, measured := containerUsed(&usage, s.Resource)
		if found && measured && used.Cmp(requested) > 0 {
			fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %s. ", usage.Name, &used, &requested, s.Resource)
			names, usages = append(names, usage.Name), append(usages, used.String())
		}
	}
	annotations["offending_containers"] = strings.Join(names, ",")
	annotations["offending_containers_usage"] = strings.Join(usages, ",")
	annotations["starved_resource"] = string(s.Resource)
	return text.String(), annotations
}

func containerRequest(pod *v1.Pod, name string, resourceName v1.ResourceName) (requested resource.Quantity, found bool) {
	for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if container.Name == name {
			return container.Resources.Requests[resourceName], true
		}
	}
	return requested, false
}

func containerUsed(usage *stats.ContainerStats, name v1.ResourceName) (used resource.Quantity, measured bool) {
	switch name {
	case v1.ResourceMemory:
		if usage.Memory != nil && usage.Memory.WorkingSetBytes != nil {
			return quantity(usage.Memory.WorkingSetBytes, resource.BinarySI), true
		}
	case v1.ResourceEphemeralStorage:
		if usage.Rootfs != nil && usage.Rootfs.UsedBytes != nil && usage.Logs != nil && usage.Logs.UsedBytes != nil {
			sum := *usage.Rootfs.UsedBytes + *usage.Logs.UsedBytes
			return quantity(&sum, resource.BinarySI), true
		}
	}
	return used, false
}

// OverLimits returns the pods that use more disk than their own limits allow, whether or not the
// node is short of it.
func OverLimits(candidates []Candidate, imagesApart bool) (evictions []Eviction) {
	for _, c := range candidates {
		if c.Usage == nil || admit.Critical(c.Pod) {
			continue
		}
		signal, message := "emptydirfs.limit", overVolume(c)
		if message == "" {
			signal, message = "ephemeralpodfs.limit", overPod(c)
		}
		if message == "" {
			signal, message = "ephemeralcontainerfs.limit", overContainer(c, imagesApart)
		}
		if message != "" {
			evictions = append(evictions, Eviction{Pod: c.Pod, Signal: signal, Grace: immediately, Message: message})
		}
	}
	return evictions
}

func overVolume(c Candidate) string {
	for _, volume := range c.Pod.Spec.Volumes {
		if volume.EmptyDir == nil || volume.EmptyDir.SizeLimit == nil || volume.EmptyDir.SizeLimit.Sign() <= 0 {
			continue
		}
		for _, usage := range c.Usage.VolumeStats {
			used := quantity(usage.UsedBytes, resource.BinarySI)
			if usage.Name == volume.Name && used.Cmp(*volume.EmptyDir.SizeLimit) > 0 {
				return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume.Name, volume.EmptyDir.SizeLimit.String())
			}
		}
	}
	return ""
}

func overPod(c Candidate) string {
	limit, found := helper.PodLimits(c.Pod, helper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	if !found || c.Usage.EphemeralStorage == nil {
		return ""
	}
	used := quantity(c.Usage.EphemeralStorage.UsedBytes, resource.BinarySI)
	if used.Cmp(limit) <= 0 {
		return ""
	}
	return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
}

func overContainer(c Candidate, imagesApart bool) string {
	for _, usage := range c.Usage.Containers {
		var used resource.Quantity
		if usage.Logs != nil {
			used.Add(quantity(usage.Logs.UsedBytes, resource.BinarySI))
		}
		if usage.Rootfs != nil && !imagesApart {
			used.Add(quantity(usage.Rootfs.UsedBytes, resource.BinarySI))
		}
		for _, container := range c.Pod.Spec.Containers {
			limit := container.Resources.Limits[v1.ResourceEphemeralStorage]
			if container.Name == usage.Name && !limit.IsZero() && used.Cmp(limit) > 0 {
				return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", usage.Name, limit.String())
			}
		}
	}
	return ""
}

func (e Eviction) String() string {
	disruption := ""
	if e.Disruption {
		disruption = ", DisruptionTarget"
	}
	return fmt.Sprintf("evict %s by %s, grace %ds%s: %s", e.Pod.Name, e.Signal, e.Grace, disruption, e.Message)
}
