// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

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
	class := func(c Candidate) int {
		if usage := used(c); usage.Cmp(requestOf(c.Pod, name)) > 0 {
			return 0
		}
		return 1
	}
	return orderMeasured(func(a, b Candidate) int { return cmp.Compare(class(a), class(b)) })
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

// orderMeasured compares by usage. Unknown usage is first.
func orderMeasured(byUsage order) order {
	return func(a, b Candidate) int {
		if a.Usage == nil || b.Usage == nil {
			return unknownFirst(a, b)
		}
		return byUsage(a, b)
	}
}

// unknownFirst orders pods of unknown usage first: they may be the cause of the shortage.
func unknownFirst(a, b Candidate) int {
	switch {
	case a.Usage == nil && b.Usage != nil:
		return -1
	case a.Usage != nil && b.Usage == nil:
		return 1
	}
	return 0
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
