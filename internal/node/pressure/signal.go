package pressure

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is something that a node can run out of, by its name in thresholds.
type Signal string

const (
	// Memory is that of the machine.
	Memory Signal = "memory.available"
	// AllocatableMemory is what all pods together may still take. Its threshold is always the hard
	// one of memory.
	AllocatableMemory Signal = "allocatableMemory.available"
	NodeFs            Signal = "nodefs.available"
	NodeFsInodes      Signal = "nodefs.inodesFree"
	ImageFs           Signal = "imagefs.available"
	ImageFsInodes     Signal = "imagefs.inodesFree"
	PIDs              Signal = "pid.available"

	// As in the kubelet, containers' writable layers are with the images or with the volumes, so
	// their thresholds are those of imagefs or nodefs, whatever is configured.
	containerFs       Signal = "containerfs.available"
	containerFsInodes Signal = "containerfs.inodesFree"
)

// Resources that are not the API's.
const (
	inodes v1.ResourceName = "inodes"
	pids   v1.ResourceName = "pids"
)

// meaning is what a signal stands for: the resource as messages name it, the condition that it
// leads to, and how amounts are written.
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

// Level is how much of a signal's resource there is. Bytes, inodes or PIDs.
type Level struct{ Available, Capacity int64 }

// Levels is one observation. A signal that could not be read is missing, and nothing follows from
// that. The zero value says nothing.
type Levels struct {
	Signals map[Signal]Level
	// ImagesApart: the runtime has a separate filesystem for images and containers.
	ImagesApart bool
	// LayersWithNode: although images are separate, writable layers are on the filesystem of
	// volumes and logs.
	LayersWithNode bool
}
