// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// AnnotationUses sets the usage of a pod's processes, as memory=300Mi,ephemeral-storage=1Gi. A
// simulated node has no processes; without the annotation a pod uses nothing.
const AnnotationUses = "berth.dev/uses"

// Uses parses a pod's usage from its annotation; nil without one. Resources other than memory and
// ephemeral storage are an error, since they have no effect.
func Uses(pod *v1.Pod) (v1.ResourceList, error) {
	text, ok := pod.Annotations[AnnotationUses]
	if !ok {
		return nil, nil
	}
	uses := v1.ResourceList{}
	for part := range strings.SplitSeq(text, ",") {
		name, amount, _ := strings.Cut(part, "=")
		quantity, err := resource.ParseQuantity(amount)
		known := name == string(v1.ResourceMemory) || name == string(v1.ResourceEphemeralStorage)
		if err != nil || !known || quantity.Sign() < 0 {
			return nil, fmt.Errorf("annotation %s: %s: must be memory=QUANTITY or ephemeral-storage=QUANTITY", AnnotationUses, part)
		}
		uses[v1.ResourceName(name)] = quantity
	}
	return uses, nil
}

// UsageOf returns the pod's usage, attributed to its first container. uses may be nil. Logs and
// inodes are 0.
func UsageOf(pod *v1.Pod, uses v1.ResourceList) *stats.PodStats {
	bytes := func(name v1.ResourceName) *uint64 {
		quantity := uses[name]
		n := uint64(quantity.Value())
		return &n
	}
	memory, disk := bytes(v1.ResourceMemory), bytes(v1.ResourceEphemeralStorage)
	return &stats.PodStats{
		Memory:           &stats.MemoryStats{WorkingSetBytes: memory},
		EphemeralStorage: &stats.FsStats{UsedBytes: disk},
		Containers: []stats.ContainerStats{{
			Name: pod.Spec.Containers[0].Name, Memory: &stats.MemoryStats{WorkingSetBytes: memory},
			Rootfs: &stats.FsStats{UsedBytes: disk}, Logs: &stats.FsStats{UsedBytes: new(uint64)},
		}},
	}
}

// Observe returns the levels of a node with this capacity and a single disk. others is the usage
// outside of the candidates. The candidates' usage is subtracted from the node's reported capacity;
// no real machine is examined. Levels are never negative.
func Observe(capacity v1.ResourceList, others map[v1.ResourceName]int64, candidates []Candidate) Levels {
	// pods excludes the usage in others; node includes it.
	left := func(name v1.ResourceName, used func(*stats.PodStats) *uint64) (pods, node Level) {
		quantity := capacity[name]
		available := quantity.Value()
		for _, c := range candidates {
			available -= int64(*used(c.Usage))
		}
		level := func(available int64) Level { return Level{Available: max(available, 0), Capacity: quantity.Value()} }
		return level(available), level(available - others[name])
	}
	ofPods, memory := left(v1.ResourceMemory, func(s *stats.PodStats) *uint64 { return s.Memory.WorkingSetBytes })
	_, disk := left(v1.ResourceEphemeralStorage, func(s *stats.PodStats) *uint64 { return s.EphemeralStorage.UsedBytes })
	return Levels{Signals: map[Signal]Level{Memory: memory, AllocatableMemory: ofPods, NodeFs: disk, ImageFs: disk}}
}
