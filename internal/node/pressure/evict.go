// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
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
			grace = min(s.maxGrace, ptr.Deref(c.Pod.Spec.TerminationGracePeriodSeconds, s.maxGrace))
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
			return toQuantity(new(*usage.Rootfs.UsedBytes+*usage.Logs.UsedBytes), resource.BinarySI), true
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

// Candidate is a pod running on the node. Usage is in the form of a kubelet's stats; if it is nil,
// the usage is unknown and the pod is evicted first.
type Candidate struct {
	Pod   *v1.Pod
	Usage *stats.PodStats
}

// order compares two candidates: the lesser one is evicted first. 0 means no difference.
type order func(a, b Candidate) int

// Rank sorts candidates in eviction order: first the pods using more of the starved resource than
// requested (overhead included), then by priority, then by the excess over the request. PIDs cannot
// be requested, so priority decides first for PIDs. The result is new. Equal candidates keep the
// caller's order.
//
//	memory is short             requests  uses   priority
//	1. a: exceeds its request   100Mi     200Mi  0
//	2. b: also exceeds it       100Mi     900Mi  1000
//	3. c: within its request    500Mi     400Mi  0
func Rank(s *Starved, candidates []Candidate) []Candidate {
	ranked := slices.Clone(candidates)
	slices.SortStableFunc(ranked, orderFor(s))
	return ranked
}

// orderFor returns the order for a starved resource.
func orderFor(s *Starved) order {
	switch {
	case s.Signal.isMemory():
		return inTurn(orderExceeding(memoryUsed, v1.ResourceMemory), byPriority, orderByExcess(memoryUsed, v1.ResourceMemory))
	case s.Signal == PIDs:
		return inTurn(byPriority, orderByExcess(tasksUsed, pids))
	}
	// The kubelet also subtracts the request in bytes from the number of inodes. Berth does the
	// same, to select the same victims.
	used := diskUsed(s)
	return inTurn(orderExceeding(used, s.Resource), byPriority, orderByExcess(used, v1.ResourceEphemeralStorage))
}

// inTurn applies the orders until one finds a difference. It returns 0 if none does.
func inTurn(orders ...order) order {
	return func(a, b Candidate) int {
		for _, order := range orders {
			if c := order(a, b); c != 0 {
				return c
			}
		}
		return 0
	}
}

// byPriority orders the lower priority first.
func byPriority(a, b Candidate) int { return cmp.Compare(rules.Priority(a.Pod), rules.Priority(b.Pod)) }

// measure returns a candidate's use of one resource.
type measure func(Candidate) resource.Quantity

// orderExceeding orders candidates exceeding their request first.
func orderExceeding(used measure, name v1.ResourceName) order {
	// Compare only whether requests are exceeded; the excess itself is compared after the priority.
	within := func(c Candidate) bool {
		usage := used(c)
		return usage.Cmp(requestOf(c.Pod, name)) <= 0
	}
	return orderMeasured(func(a, b Candidate) int { return rules.FalseFirst(within(a), within(b)) })
}

// orderByExcess orders the greatest excess over the request first. The difference may be negative.
func orderByExcess(used measure, name v1.ResourceName) order {
	over := func(c Candidate) resource.Quantity {
		usage := used(c)
		usage.Sub(requestOf(c.Pod, name))
		return usage
	}
	return orderMeasured(func(a, b Candidate) int {
		overA, overB := over(a), over(b)
		return overB.Cmp(overA)
	})
}

// orderMeasured compares by usage. Unknown usage is first: such pods may be the cause of the
// shortage.
func orderMeasured(byUsage order) order {
	return func(a, b Candidate) int {
		if a.Usage == nil || b.Usage == nil {
			return rules.FalseFirst(a.Usage != nil, b.Usage != nil)
		}
		return byUsage(a, b)
	}
}

// requestOf returns a pod's request, including overhead. As in the kubelet, a pod without requests
// gets no allowance for its overhead. A pod-level request replaces those of the containers.
func requestOf(pod *v1.Pod, name v1.ResourceName) resource.Quantity {
	whole := helper.IsPodLevelResourcesSet(pod)
	sum := rules.PodRequests(pod, helper.PodResourcesOptions{ExcludeOverhead: true, SkipContainerLevelResources: whole})[name]
	if overhead, found := pod.Spec.Overhead[name]; found && !sum.IsZero() {
		sum.Add(overhead)
	}
	return sum
}

// Requests returns a pod's requests of memory and ephemeral storage, for comparison with its usage.
// Overhead is included, as in requestOf.
func Requests(pod *v1.Pod) v1.ResourceList {
	return v1.ResourceList{v1.ResourceMemory: requestOf(pod, v1.ResourceMemory),
		v1.ResourceEphemeralStorage: requestOf(pod, v1.ResourceEphemeralStorage)}
}

// toQuantity returns 0 for an unmeasured value.
func toQuantity(n *uint64, format resource.Format) resource.Quantity {
	if n == nil {
		return resource.Quantity{Format: format}
	}
	return *resource.NewQuantity(int64(*n), format)
}

// memoryUsed returns the working set, as in the kubelet.
func memoryUsed(c Candidate) resource.Quantity {
	if c.Usage.Memory == nil {
		return resource.Quantity{Format: resource.BinarySI}
	}
	return toQuantity(c.Usage.Memory.WorkingSetBytes, resource.BinarySI)
}

// tasksUsed returns the number of processes; 0 if unmeasured.
func tasksUsed(c Candidate) resource.Quantity {
	if c.Usage.ProcessStats == nil {
		return resource.Quantity{Format: resource.DecimalSI}
	}
	return toQuantity(c.Usage.ProcessStats.ProcessCount, resource.DecimalSI)
}

// diskUsed sums up a pod's use of the full filesystem. If there is only one filesystem, all use
// counts. Otherwise logs and volumes are on the node's filesystem; writable layers are on the image
// filesystem or, if the runtime is configured that way, on the node's.
func diskUsed(s *Starved) measure {
	layers, _ := s.holdsLayers()
	rest := !s.imagesApart || !s.ofImages()
	return func(c Candidate) resource.Quantity {
		var sum resource.Quantity
		add := func(fs *stats.FsStats) {
			if fs != nil {
				sum.Add(diskPart(fs, s.Resource))
			}
		}

		for i := range c.Usage.Containers {
			if layers {
				add(c.Usage.Containers[i].Rootfs)
			}
			if rest {
				add(c.Usage.Containers[i].Logs)
			}
		}

		if rest {
			for i := range c.Usage.VolumeStats {
				if isLocal(c.Pod, c.Usage.VolumeStats[i].Name) {
					add(&c.Usage.VolumeStats[i].FsStats)
				}
			}
		}
		return sum
	}
}

// diskPart returns the used bytes or inodes of a filesystem.
func diskPart(fs *stats.FsStats, name v1.ResourceName) resource.Quantity {
	if name == inodes {
		return toQuantity(fs.InodesUsed, resource.DecimalSI)
	}
	return toQuantity(fs.UsedBytes, resource.BinarySI)
}

// isLocal reports whether a volume uses the node's disk, not its memory. A volume missing from the
// pod's spec is not counted.
func isLocal(pod *v1.Pod, name string) bool {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == name {
			return volume.HostPath != nil || volume.ConfigMap != nil || volume.GitRepo != nil ||
				volume.EmptyDir != nil && volume.EmptyDir.Medium == v1.StorageMediumDefault
		}
	}
	return false
}
