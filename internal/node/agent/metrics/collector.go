package metrics

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-k8s/berth/internal/node/agent/cgroups"
	"github.com/berth-k8s/berth/internal/node/agent/volumes/sizes"
)

// Tree is what is measured in cgroups.
type Tree interface {
	Machine() (memory, tasks cgroups.Level, err error)
	NodeUsage() (cgroups.Usage, error)
	AllPods() (usage cgroups.Usage, memoryLimit int64, err error)
	PodUsage(types.UID) (cgroups.Usage, error)
	PodGroup(*v1.Pod) string
	ContainerUsage(uid types.UID, container string) (cgroups.Usage, error)
}

// Runtime is what a Collector needs of the container runtime.
type Runtime interface {
	ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error)
	ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Options are what a Collector measures.
type Options struct {
	Node    string
	Tree    Tree
	Runtime Runtime
	// Pods returns those to measure, with the IDs of their containers in their statuses.
	Pods func() []*v1.Pod
	// Volumes measures the volumes of a pod, until the context ends at the latest.
	Volumes func(context.Context, *v1.Pod) ([]sizes.Usage, error)
	// RootDir is on the node's filesystem, LogDir is where the pods' logs are.
	RootDir, LogDir string
}

// Collector measures on request, concurrently if necessary.
type Collector struct {
	Options
	started time.Time
	disks   *meter

	mu sync.Mutex
	// rates are the last samples per cgroup, from which CPU usage per second is computed.
	rates map[string]rate
	// mounts are where the runtime keeps images and containers; empty: not known yet.
	mounts mounts
}

// New measures nothing yet. Background measurements end with ctx.
func New(ctx context.Context, options Options) *Collector {
	c := &Collector{Options: options, started: time.Now(), rates: map[string]rate{}}
	c.disks = newMeter(ctx, c.walk)
	return c
}

// Summary returns the content of the kubelet's /stats/summary. With cpuAndMemory, disks are not
// measured. Without, the sizes of pods are the last ones measured; only a pod that was never
// measured is waited for.
func (c *Collector) Summary(ctx context.Context, cpuAndMemory bool) (*stats.Summary, error) {
	node, err := c.node(ctx, cpuAndMemory)
	if err != nil {
		return nil, err
	}
	var layers map[string]*runtimeapi.FilesystemUsage
	var filesystem, layerFilesystem *stats.FsStats
	if !cpuAndMemory {
		if layers, err = c.writableLayers(ctx); err != nil {
			return nil, err
		}
		filesystem = node.Fs
		layerFilesystem = node.Fs
		if node.Runtime != nil {
			layerFilesystem = node.Runtime.ContainerFs
		}
	}
	summary := &stats.Summary{Node: *node, Pods: []stats.PodStats{}}
	seen := map[string]bool{"node": true, "pods": true}
	pods := c.Pods()
	var sizes map[types.UID]podDisk
	if !cpuAndMemory {
		sizes = c.disks.of(ctx, pods)
	}
	for _, pod := range pods {
		measured, known := c.pod(pod, seen)
		if !known {
			continue
		}
		if !cpuAndMemory {
			addDisks(pod, measured, sizes, layers, filesystem, layerFilesystem)
		}
		summary.Pods = append(summary.Pods, *measured)
	}
	c.forget(seen)
	return summary, nil
}

func (c *Collector) node(ctx context.Context, cpuAndMemory bool) (*stats.NodeStats, error) {
	usage, err := c.Tree.NodeUsage()
	if err != nil {
		return nil, fmt.Errorf("measure the node: %w", err)
	}
	memory, tasks, err := c.Tree.Machine()
	if err != nil {
		return nil, fmt.Errorf("measure the node: %w", err)
	}
	node := &stats.NodeStats{
		NodeName: c.Node, StartTime: metav1.NewTime(c.started),
		CPU: c.cpu("node", usage), Memory: memoryStats(usage, memory.Capacity),
	}
	if pods, limit, err := c.Tree.AllPods(); err == nil {
		node.SystemContainers = []stats.ContainerStats{{
			Name: stats.SystemContainerPods, StartTime: node.StartTime,
			CPU: c.cpu("pods", pods), Memory: memoryStats(pods, limit),
		}}
	}
	if cpuAndMemory {
		return node, nil
	}
	node.Rlimit = &stats.RlimitStats{Time: metav1.NewTime(usage.Time), MaxPID: &tasks.Capacity, NumOfRunningProcesses: &tasks.Used}
	if node.Fs, err = filesystem(c.RootDir); err != nil {
		return nil, fmt.Errorf("measure the node's filesystem: %w", err)
	}
	node.Runtime, err = c.runtime(ctx)
	return node, err
}

// pod measures the pod's cgroup and those of its running containers. A pod without a cgroup does
// not run.
func (c *Collector) pod(pod *v1.Pod, seen map[string]bool) (*stats.PodStats, bool) {
	usage, err := c.Tree.PodUsage(pod.UID)
	if err != nil {
		return nil, false
	}
	key := string(pod.UID)
	seen[key] = true
	measured := &stats.PodStats{
		PodRef:       stats.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
		StartTime:    pod.CreationTimestamp,
		CPU:          c.cpu(key, usage),
		Memory:       memoryStats(usage, 0),
		ProcessStats: &stats.ProcessStats{ProcessCount: number(usage.Tasks)},
		Containers:   []stats.ContainerStats{},
	}
	if pod.Status.StartTime != nil {
		measured.StartTime = *pod.Status.StartTime
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].State.Running == nil {
				continue
			}
			id := containerID(list[i].ContainerID)
			usage, err := c.Tree.ContainerUsage(pod.UID, id)
			if err != nil {
				continue // it has just ended
			}
			seen[id] = true
			measured.Containers = append(measured.Containers, stats.ContainerStats{
				Name: list[i].Name, StartTime: list[i].State.Running.StartedAt,
				CPU: c.cpu(id, usage), Memory: memoryStats(usage, memoryLimit(pod, list[i].Name)),
			})
		}
	}
	return measured, true
}

// containerID strips the runtime's name from an ID.
func containerID(id string) string {
	if _, bare, found := strings.Cut(id, "://"); found {
		return bare
	}
	return id
}

func memoryLimit(pod *v1.Pod, container string) int64 {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return cgroups.ForContainer(pod, &list[i]).Memory
			}
		}
	}
	return 0
}

// rate is the CPU usage between two samples.
type rate struct {
	at    time.Time
	used  time.Duration
	cores *uint64 // nanoseconds of CPU a second; nil before the second sample
}

// window is the minimum time between the samples of a rate: over less, a single time slice could
// look like a full core.
const window = 5 * time.Second

func (c *Collector) cpu(key string, usage cgroups.Usage) *stats.CPUStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, found := c.rates[key]
	switch elapsed := usage.Time.Sub(last.at); {
	case !found || usage.CPU < last.used:
		last = rate{at: usage.Time, used: usage.CPU}
	case elapsed >= window:
		cores := uint64(float64(usage.CPU-last.used) / elapsed.Seconds())
		last = rate{usage.Time, usage.CPU, &cores}
	}
	c.rates[key] = last
	return &stats.CPUStats{Time: metav1.NewTime(usage.Time), UsageCoreNanoSeconds: number(int64(usage.CPU)), UsageNanoCores: last.cores}
}

// forget drops the samples of what is gone.
func (c *Collector) forget(seen map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.rates {
		if !seen[key] {
			delete(c.rates, key)
		}
	}
}

func memoryStats(usage cgroups.Usage, limit int64) *stats.MemoryStats {
	memory := &stats.MemoryStats{
		Time: metav1.NewTime(usage.Time), UsageBytes: number(usage.Memory), WorkingSetBytes: number(usage.WorkingSet),
		RSSBytes: number(usage.RSS), PageFaults: number(usage.Faults), MajorPageFaults: number(usage.MajorFault),
	}
	if limit > 0 {
		memory.AvailableBytes = number(limit - usage.WorkingSet)
	}
	return memory
}

func number(n int64) *uint64 {
	u := uint64(max(n, 0))
	return &u
}
