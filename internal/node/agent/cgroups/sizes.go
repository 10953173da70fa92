package cgroups

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Sizes are the limits of one group. Zero is "not set": the kernel's default, which is none.
type Sizes struct {
	Memory int64 // limit in bytes
	Shares int64 // of CPU, relative to the groups beside it; as in cgroup v1, where 1024 is one CPU
	Quota  int64 // microseconds of CPU in a Period
	Period int64
	PIDs   int64 // limit of tasks, threads included
}

const (
	// The range of CPU shares. No request counts as the minimum, not as the kernel's default of a
	// whole CPU.
	minShares = 2
	maxShares = 262144

	period   = 100_000 // 100 ms, the kernel's default
	minQuota = 1_000   // 1 ms: the kernel takes no less
)

func shares(milliCPU int64) int64 {
	return min(max(milliCPU*1024/1000, minShares), maxShares)
}

func quota(milliCPU int64) int64 {
	if milliCPU == 0 {
		return 0
	}
	return max(milliCPU*period/1000, minQuota)
}

// weight converts shares to the cpu.weight of cgroup v2, as the kubelet does for its own groups:
// the ranges are mapped onto each other.
func weight(shares int64) int64 {
	return 1 + (min(max(shares, minShares), maxShares)-minShares)*9999/(maxShares-minShares)
}

// ForPod sizes the pod's own group: shares from its requests, quota and memory limit from its
// limits if every container has one (or the pod as a whole has), overhead included. BestEffort pods
// get what is left.
func ForPod(pod *v1.Pod) Sizes {
	if rules.QOS(pod) == v1.PodQOSBestEffort {
		return Sizes{Shares: minShares}
	}
	requests := helper.PodRequests(pod, helper.PodResourcesOptions{})
	sizes := Sizes{Shares: shares(requests.Cpu().MilliValue())}
	limits := rules.GroupLimits(pod)
	if cpu, limited := limits[v1.ResourceCPU]; limited {
		sizes.Quota, sizes.Period = quota(cpu.MilliValue()), period
	}
	sizes.Memory = limits.Memory().Value()
	return sizes
}

// ForContainer sizes a container in its pod's group. A container without a limit has the pod's, if
// the pod as a whole has one.
func ForContainer(pod *v1.Pod, container *v1.Container) Sizes {
	cpu, memory := container.Resources.Limits.Cpu(), container.Resources.Limits.Memory()
	if whole := pod.Spec.Resources; whole != nil {
		if cpu.IsZero() {
			cpu = whole.Limits.Cpu()
		}
		if memory.IsZero() {
			memory = whole.Limits.Memory()
		}
	}
	return plain(container.Resources.Requests, cpu, memory)
}

// ForSandbox is the pod's total size for the runtime, the containers' part and the overhead. Some
// runtimes size a virtual machine by it.
func ForSandbox(pod *v1.Pod) (containers, overhead Sizes) {
	options := helper.PodResourcesOptions{ExcludeOverhead: true}
	limits := helper.PodLimits(pod, options)
	containers = plain(helper.PodRequests(pod, options), limits.Cpu(), limits.Memory())
	if pod.Spec.Overhead != nil {
		overhead = plain(pod.Spec.Overhead, pod.Spec.Overhead.Cpu(), pod.Spec.Overhead.Memory())
	}
	return containers, overhead
}

// plain converts amounts as they are. A CPU limit without a request implies an equal request.
func plain(requests v1.ResourceList, cpuLimit, memoryLimit *resource.Quantity) Sizes {
	cpu, requested := requests[v1.ResourceCPU]
	if !requested {
		cpu = *cpuLimit
	}
	return Sizes{
		Memory: memoryLimit.Value(),
		Shares: shares(cpu.MilliValue()),
		Quota:  quota(cpuLimit.MilliValue()),
		Period: period,
	}
}

// burstable sizes the group of all Burstable pods: its shares are what they request together.
func burstable(pods []*v1.Pod) Sizes {
	var milliCPU int64
	for _, pod := range pods {
		if rules.QOS(pod) == v1.PodQOSBurstable {
			requests := helper.PodRequests(pod, helper.PodResourcesOptions{})
			milliCPU += requests.Cpu().MilliValue()
		}
	}
	return Sizes{Shares: shares(milliCPU)}
}
