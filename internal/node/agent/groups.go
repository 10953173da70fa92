package agent

import (
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/cgroups"
)

// groups are the pods' cgroups, and how CRI refers to them.
type groups struct {
	tree   *cgroups.Tree
	memory int64
	// pinning knows the containers with CPUs of their own; nil: there are none.
	pinning *pinning
}

func openGroups(c Config, p *pinning) (*groups, error) {
	tree, err := cgroups.Open(cgroups.Options{Root: c.CgroupRoot, Driver: c.CgroupDriver, PodPIDs: c.PodPIDs, NoQuota: p.podOwns})
	if err != nil {
		return nil, err
	}
	memory, _, err := tree.Capacity()
	if err != nil {
		return nil, err
	}
	return &groups{tree: tree, memory: memory, pinning: p}, nil
}

// noQuota is how the runtime is told that there is none.
const noQuota = -1

// resources are the sizes for the runtime. With cgroup v2, a container that runs out of memory is
// killed with all its processes, not only the largest one.
func (g *groups) resources(s cgroups.Sizes) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{CpuShares: s.Shares, CpuQuota: s.Quota, CpuPeriod: s.Period, MemoryLimitInBytes: s.Memory}
	if g.tree.Unified() {
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return out
}

func (g *groups) container(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	out := g.resources(cgroups.ForContainer(pod, c))
	out.OomScoreAdj = cgroups.OOMScoreAdj(pod, c, g.memory)
	if g.pinning.owns(pod.UID, c.Name) {
		out.CpuQuota = noQuota
	}
	return out
}

func (g *groups) sandbox(pod *v1.Pod) (overhead, whole *runtimeapi.LinuxContainerResources) {
	containers, above := cgroups.ForSandbox(pod)
	overhead, whole = g.resources(above), g.resources(containers)
	if g.pinning.podOwns(pod) {
		whole.CpuQuota = noQuota
	}
	return overhead, whole
}

// share distributes the CPU over the QoS classes, after a pod was added or removed.
func (a *Agent) share() {
	if err := a.cgroups.tree.Share(a.ActivePods()); err != nil {
		klog.V(2).InfoS("Cannot share the CPU between the classes of pods", "err", err)
	}
}
