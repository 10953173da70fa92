//go:build linux

package main

import (
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent"
	"github.com/berth-k8s/berth/internal/node/agent/cpus"
	"github.com/berth-k8s/berth/internal/node/agent/memory"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// cpuFlags are those of the kubelet's CPU, memory and topology managers.
type cpuFlags struct {
	options, alignmentOptions map[string]string
	reserved                  string
	policy, alignment, scope  string
	memoryPolicy              string
	reservedMemory            []string
}

func (f *cpuFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.policy, "cpu-manager-policy", cpus.None,
		"none, or static: a container of a Guaranteed pod that requests whole CPUs has them to itself; the checkpoint cpu_manager_state in --root-dir has to be deleted before the policy is changed")
	flags.StringToStringVar(&f.options, "cpu-manager-policy-options", nil, "options of the policy static, as name=true,...: "+cpus.OptionNames())
	flags.StringVar(&f.reserved, "reserved-cpus", "",
		"CPUs reserved for the system and for Kubernetes components, such as 0-1,8: replaces cpu in --kube-reserved and --system-reserved")
	flags.StringVar(&f.memoryPolicy, "memory-manager-policy", memory.None,
		"None, or Static: a container of a Guaranteed pod has its memory and huge pages from as few NUMA nodes as possible; the checkpoint memory_manager_state in --root-dir has to be deleted before the policy is changed")
	flags.StringArrayVar(&f.reservedMemory, "reserved-memory", nil,
		"what of each NUMA node is reserved, such as 0:memory=1Gi,hugepages-2Mi=100Mi;1:memory=1Gi: together as much as --kube-reserved, --system-reserved and memory.available of --eviction-hard; needed for --memory-manager-policy Static; may be repeated")
	flags.StringVar(&f.alignment, "topology-manager-policy", topology.None,
		"whether a container's CPUs and memory have to come from as few NUMA nodes as possible: none, best-effort, restricted or single-numa-node")
	flags.StringVar(&f.scope, "topology-manager-scope", topology.ContainerScope, "what --topology-manager-policy applies to: each container, or the pod as a whole")
	flags.StringToStringVar(&f.alignmentOptions, "topology-manager-policy-options", nil, "options of that policy: prefer-closest-numa-nodes=true, max-allowable-numa-nodes=N")
}

// complete checks the flags, after the reservations are known.
func (f *cpuFlags) complete(c *agent.Config) (err error) {
	if f.policy != cpus.None && f.policy != cpus.Static {
		return usagef("--cpu-manager-policy %q: must be %s or %s", f.policy, cpus.None, cpus.Static)
	}
	if c.ReservedCPUs, err = cpuset.Parse(f.reserved); err != nil {
		return usagef("--reserved-cpus %q: must be CPUs such as 0-1,8", f.reserved)
	}
	if n := c.ReservedCPUs.Size(); n > 0 {
		delete(c.KubeReserved, v1.ResourceCPU)
		c.SystemReserved[v1.ResourceCPU] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	if c.Alignment, err = topology.NewAlignment(f.alignment, f.scope, f.alignmentOptions); err != nil {
		return usagef("--topology-manager-policy: %v", err)
	}
	if err := f.completeMemory(c); err != nil {
		return err
	}
	if f.policy == cpus.None {
		if len(f.options) > 0 {
			return usagef("--cpu-manager-policy-options: only --cpu-manager-policy static has options")
		}
		return nil
	}
	c.CPUPolicy = cpus.Static
	if c.CPUOptions, err = cpus.ParseOptions(f.options); err != nil {
		return usagef("--cpu-manager-policy-options: %v", err)
	}
	if c.KubeReserved.Cpu().IsZero() && c.SystemReserved.Cpu().IsZero() {
		return usagef("--cpu-manager-policy static: needs reserved CPUs, for everything without CPUs of its own: give --reserved-cpus, or cpu in --kube-reserved or --system-reserved")
	}
	if c.CPUs > 0 {
		return usagef("--cpus: must not be given with --cpu-manager-policy static, which gives away the machine's CPUs")
	}
	return nil
}

// completeMemory checks the flags of the memory manager.
func (f *cpuFlags) completeMemory(c *agent.Config) (err error) {
	if f.memoryPolicy != memory.None && f.memoryPolicy != memory.Static {
		return usagef("--memory-manager-policy %q: must be %s or %s", f.memoryPolicy, memory.None, memory.Static)
	}
	if c.ReservedMemory, err = memory.ParseReserved(strings.Join(f.reservedMemory, ";")); err != nil {
		return usagef("--reserved-memory: %v", err)
	}
	if f.memoryPolicy == memory.None {
		return nil
	}
	c.MemoryPolicy = memory.Static
	if len(c.ReservedMemory) == 0 {
		return usagef("--memory-manager-policy Static: needs --reserved-memory, which says of which NUMA nodes the reserved memory is")
	}
	return nil
}
