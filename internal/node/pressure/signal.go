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

// Signal is a resource that a node can run out of, by its name in thresholds.
type Signal string

const (
	// Memory is the machine's memory.
	Memory Signal = "memory.available"
	// AllocatableMemory is the memory left for all pods together. Its threshold is always the hard
	// memory threshold.
	AllocatableMemory Signal = "allocatableMemory.available"
	NodeFs            Signal = "nodefs.available"
	NodeFsInodes      Signal = "nodefs.inodesFree"
	ImageFs           Signal = "imagefs.available"
	ImageFsInodes     Signal = "imagefs.inodesFree"
	PIDs              Signal = "pid.available"

	// As in the kubelet, containers' writable layers are on the filesystem of the images or of the
	// volumes, so the thresholds of imagefs or nodefs always apply to them.
	containerFs       Signal = "containerfs.available"
	containerFsInodes Signal = "containerfs.inodesFree"
)

// These resource names do not exist in the API.
const (
	inodes v1.ResourceName = "inodes"
	pids   v1.ResourceName = "pids"
)

// meaning describes a signal: the resource named by messages, the resulting condition, and the
// format of amounts.
type meaning struct {
	resource  v1.ResourceName
	condition v1.NodeConditionType
	format    resource.Format
}

var meanings = map[Signal]meaning{
	Memory:            {v1.ResourceMemory, v1.NodeMemoryPressure, resource.BinarySI},
	AllocatableMemory: {v1.ResourceMemory, v1.NodeMemoryPressure, resource.BinarySI},
	NodeFs:            {v1.ResourceEphemeralStorage, v1.NodeDiskPressure, resource.BinarySI},
	NodeFsInodes:      {inodes, v1.NodeDiskPressure, resource.DecimalSI},
	ImageFs:           {v1.ResourceEphemeralStorage, v1.NodeDiskPressure, resource.BinarySI},
	ImageFsInodes:     {inodes, v1.NodeDiskPressure, resource.DecimalSI},
	containerFs:       {v1.ResourceEphemeralStorage, v1.NodeDiskPressure, resource.BinarySI},
	containerFsInodes: {inodes, v1.NodeDiskPressure, resource.DecimalSI},
	PIDs:              {pids, v1.NodePIDPressure, resource.DecimalSI},
}

func (s Signal) isMemory() bool { return s == Memory || s == AllocatableMemory }

// Level is the amount of a signal's resource in bytes, inodes or PIDs.
type Level struct{ Available, Capacity int64 }

// Levels is one observation. An unreadable signal is missing and has no effect. The zero value is
// an empty observation.
type Levels struct {
	Signals map[Signal]Level
	// ImagesApart is set if the runtime has a separate filesystem for images and containers.
	ImagesApart bool
	// LayersWithNode is set if images are separate but writable layers share the filesystem of
	// volumes and logs.
	LayersWithNode bool
}

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
		return new(uint64(quantity.Value()))
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
