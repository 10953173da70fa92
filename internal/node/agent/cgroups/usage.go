package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Usage is that of a group and those beneath it.
type Usage struct {
	Time time.Time
	// CPU is the time used since the group was made.
	CPU time.Duration
	// Memory, in bytes, is all that is charged; WorkingSet is the part that cannot be dropped at
	// once, which counts for eviction.
	Memory, WorkingSet int64
	RSS                int64
	Faults, MajorFault int64
	// Tasks includes threads, as the limit of PIDs does.
	Tasks int64
}

// workingSet is what cannot be dropped at once. File pages that were not used recently can.
func workingSet(memory, inactiveFile int64) int64 { return max(memory-inactiveFile, 0) }

// PodGroup is the path of a pod's group below the kernel's mount point.
func (t *Tree) PodGroup(p *v1.Pod) string { return t.path(pod(t.kubepods, rules.QOS(p), p.UID)) }

// PodUsage reads a pod's group.
func (t *Tree) PodUsage(uid types.UID) (Usage, error) {
	group, err := t.find(uid)
	if err != nil {
		return Usage{}, err
	}
	return t.files.usage(t.path(group))
}

// PodSizes reads what a pod's group is limited to now: memory and quota.
func (t *Tree) PodSizes(uid types.UID) (Sizes, error) {
	group, err := t.find(uid)
	if err != nil {
		return Sizes{}, err
	}
	return t.files.sizes(t.path(group))
}

// SetPod sets the sizes of a pod's group that are not zero.
func (t *Tree) SetPod(uid types.UID, sizes Sizes) error {
	group, err := t.find(uid)
	if err != nil {
		return err
	}
	if err := t.files.set(t.path(group), sizes); err != nil {
		return fmt.Errorf("size the cgroup of pod %s: %w", uid, err)
	}
	return nil
}

// ContainerUsage reads the group that the runtime made for a container, by the container's ID
// without the runtime's name.
func (t *Tree) ContainerUsage(uid types.UID, container string) (Usage, error) {
	group, err := t.find(uid)
	if err != nil {
		return Usage{}, err
	}
	folder := container
	if t.Driver == Systemd {
		folder = "cri-containerd-" + container + ".scope"
	}
	return t.files.usage(filepath.Join(t.path(group), folder))
}

// AllPods reads the group of all pods, and its limit of memory (0: none).
func (t *Tree) AllPods() (usage Usage, memory int64, err error) {
	if usage, err = t.files.usage(t.path(t.kubepods)); err != nil {
		return usage, 0, err
	}
	memory, _, err = t.files.limits(t.path(t.kubepods))
	return usage, memory, err
}

// find searches for the pod's group: the class of a pod is unknown once the pod itself is gone.
func (t *Tree) find(uid types.UID) (name, error) {
	for _, qos := range qosClasses {
		if group := pod(t.kubepods, qos, uid); t.exists(group) {
			return group, nil
		}
	}
	return nil, fmt.Errorf("pod %s has no cgroup: %w", uid, os.ErrNotExist)
}

// Level is how much there is of something, and how much of it is used.
type Level struct{ Capacity, Used int64 }

// Available is what is left.
func (l Level) Available() int64 { return max(l.Capacity-l.Used, 0) }

// Machine is what the node has: the machine's memory and tasks, or those of the tree's root where
// that (or what is above it) has lower limits.
func (t *Tree) Machine() (memory, tasks Level, err error) {
	if memory, err = t.machineMemory(); err != nil {
		return memory, tasks, err
	}
	if tasks, err = t.machineTasks(); err != nil {
		return memory, tasks, err
	}
	for depth := range t.root {
		path := t.path(t.root[:depth+1])
		memoryLimit, taskLimit, err := t.files.limits(path)
		if err != nil {
			return memory, tasks, err
		}
		if memoryLimit == 0 && taskLimit == 0 {
			continue
		}
		usage, err := t.files.usage(path)
		if err != nil {
			return memory, tasks, err
		}
		if memoryLimit > 0 && memoryLimit < memory.Capacity {
			memory = Level{memoryLimit, usage.WorkingSet}
		}
		if taskLimit > 0 && taskLimit < tasks.Capacity {
			tasks = Level{taskLimit, usage.Tasks}
		}
	}
	return memory, tasks, nil
}

// Capacity returns the capacities that Machine reports.
func (t *Tree) Capacity() (memory, tasks int64, err error) {
	m, p, err := t.Machine()
	return m.Capacity, p.Capacity, err
}

func (t *Tree) machineMemory() (Level, error) {
	table, err := meminfo(filepath.Join(t.Proc, "meminfo"))
	if err != nil {
		return Level{}, err
	}
	level := Level{Capacity: table["MemTotal"], Used: workingSet(table["MemTotal"]-table["MemFree"], table["Inactive(file)"])}
	// Version 1 counts memory in the topmost group, too, and the kubelet reads it there.
	if usage, err := t.files.usage("/"); err == nil && usage.Memory > 0 {
		level.Used = usage.WorkingSet
	}
	return level, nil
}

// meminfo reads /proc/meminfo, in bytes.
func meminfo(path string) (map[string]int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	table := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 3 && words[2] == "kB" {
			n, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", path, err)
			}
			table[strings.TrimSuffix(words[0], ":")] = n << 10
		}
	}
	return table, nil
}

func (t *Tree) machineTasks() (Level, error) {
	var level Level
	for _, file := range []string{"sys/kernel/pid_max", "sys/kernel/threads-max"} {
		n, err := readNumber(t.Proc, file)
		if err != nil {
			return level, err
		}
		if level.Capacity == 0 || n < level.Capacity {
			level.Capacity = n
		}
	}
	text, err := read(t.Proc, "loadavg")
	if err != nil {
		return level, err
	}
	// 0.20 0.18 0.12 1/80 11206: of 80 tasks, one is running.
	words := strings.Fields(text)
	if len(words) < 4 {
		return level, fmt.Errorf("read %s/loadavg: %q", t.Proc, text)
	}
	_, all, _ := strings.Cut(words[3], "/")
	level.Used, err = strconv.ParseInt(all, 10, 64)
	return level, err
}

// NodeUsage is the usage of the whole machine, or of the tree's root where that stands for the
// machine.
func (t *Tree) NodeUsage() (Usage, error) {
	if memory, _, err := t.files.limits(t.path(t.root)); err == nil && memory > 0 && len(t.root) > 0 {
		return t.files.usage(t.path(t.root))
	}
	usage, err := t.files.usage("/")
	if err != nil {
		return usage, err
	}
	memory, tasks, err := t.Machine()
	// The topmost group of version 2 does not count memory.
	usage.Memory, usage.WorkingSet, usage.Tasks = max(usage.Memory, memory.Used), memory.Used, tasks.Used
	return usage, err
}
