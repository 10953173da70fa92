// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
