package agentparity

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cadvisor "github.com/google/cadvisor/info/v1"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	theirtopology "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/node/agent/cpus"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// aMachine is made up, in both forms, with its NUMA nodes for the kubelet's topology manager. A
// socket has several NUMA nodes, or a node several sockets.
func aMachine(t *rapid.T) (*topology.Machine, *theirtopology.CPUTopology, []cadvisor.Node) {
	draw := func(most int, of string) int { return rapid.IntRange(1, most).Draw(t, of) }
	outer, inner, caches, cores, threads := draw(2, "outer parts"), draw(2, "inner parts"), draw(2, "caches"), draw(3, "cores"), draw(2, "threads")
	wide := rapid.Bool().Draw(t, "nodes are larger than sockets")
	m := &topology.Machine{CPUs: map[int]topology.CPU{}, Distances: map[int][]uint64{}}
	all := outer * inner * caches * cores
	for core := range all {
		at := topology.CPU{Core: core, Cache: core / cores, Node: core / (cores * caches), Socket: core / (cores * caches * inner)}
		if wide {
			at.Node, at.Socket = at.Socket, at.Node
		}
		for thread := range threads {
			m.CPUs[core+thread*all] = at
		}
	}
	m.Nodes = m.IDs(topology.CPU.NodeOf)
	theirs := &theirtopology.CPUTopology{
		NumCPUs: all * threads, NumCores: all, NumUncoreCache: outer * inner * caches, NumSockets: len(m.IDs(topology.CPU.SocketOf)),
		NumNUMANodes: len(m.Nodes), CPUDetails: theirtopology.CPUDetails{},
	}
	for cpu, at := range m.CPUs {
		theirs.CPUDetails[cpu] = theirtopology.CPUInfo{NUMANodeID: at.Node, SocketID: at.Socket, CoreID: at.Core, UncoreCacheID: at.Cache}
	}
	return m, theirs, nodesOf(t, m)
}

func nodesOf(t *rapid.T, m *topology.Machine) (nodes []cadvisor.Node) {
	for _, id := range m.Nodes {
		for range m.Nodes {
			m.Distances[id] = append(m.Distances[id], rapid.Uint64Range(10, 13).Draw(t, "distance"))
		}
		nodes = append(nodes, cadvisor.Node{Id: id, Distances: m.Distances[id]})
	}
	return nodes
}

// cpuProvider is the kubelet's static policy as a provider of hints.
type cpuProvider struct {
	cpumanager.Policy
	state state.State
}

func (p cpuProvider) GetTopologyHints(pod *v1.Pod, c *v1.Container) map[string][]topologymanager.TopologyHint {
	return p.Policy.GetTopologyHints(logger, p.state, pod, c)
}

func (p cpuProvider) GetPodTopologyHints(pod *v1.Pod) map[string][]topologymanager.TopologyHint {
	return p.Policy.GetPodTopologyHints(logger, p.state, pod)
}

func (p cpuProvider) Allocate(pod *v1.Pod, c *v1.Container) error {
	return p.Policy.Allocate(logger, p.state, pod, c)
}

func (p cpuProvider) AllocatePod(pod *v1.Pod) error {
	return p.Policy.AllocatePod(logger, p.state, pod)
}

func (p cpuProvider) remove(uid string) {
	for name := range p.state.GetCPUAssignments()[uid] {
		_ = p.RemoveContainer(logger, p.state, uid, name)
	}
}

// aPinnedPod has some containers with whole CPUs, and others.
func aPinnedPod(t *rapid.T, name string, starts bool) *v1.Pod {
	pod := &v1.Pod{}
	pod.Name, pod.UID = name, types.UID(name)
	always := v1.ContainerRestartPolicyAlways
	container := func(kind string) v1.Container {
		list := v1.ResourceList{
			v1.ResourceCPU:    resource.MustParse(rapid.SampledFrom([]string{"1", "2", "3", "4", "6", "500m", "1500m", "2000m"}).Draw(t, kind)),
			v1.ResourceMemory: resource.MustParse("1Gi"),
		}
		return v1.Container{Resources: v1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}}
	}
	if starts {
		for i := range rapid.IntRange(0, 3).Draw(t, "init containers") {
			c := container("CPU of an init container")
			c.Name = fmt.Sprint("i", i)
			if rapid.Bool().Draw(t, "sidecar") {
				c.RestartPolicy = &always
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		}
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		c := container("CPU of a container")
		c.Name = fmt.Sprint("c", i)
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	if rapid.IntRange(0, 9).Draw(t, "burstable") == 0 {
		pod.Spec.Containers[0].Resources.Limits = nil
	}
	return pod
}

// addCPUs adds CPUs of their own for containers.
func (c *comparison) addCPUs(t *rapid.T, count int, reserved cpuset.CPUSet, options map[string]string) {
	static, err := cpumanager.NewStaticPolicy(logger, c.theirMachine, count, reserved, c.manager, options)
	if err != nil {
		t.Fatal(err)
	}
	theirs := cpuProvider{static, state.NewMemoryState(logger)}
	if err := static.Start(logger, theirs.state); err != nil {
		t.Fatal(err)
	}
	o, err := cpus.ParseOptions(options)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := cpus.New(c.machine, count, reserved, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ours.Begin(cpus.State{})
	if err != nil {
		t.Fatal(err)
	}
	c.add(allocator{
		theirs: theirs,
		draft: func() (topology.Provider, func()) {
			draft := ours.Draft(s)
			return draft, func() { s = draft.State() }
		},
		remove: func(uid types.UID) {
			theirs.remove(string(uid))
			s = s.Release(uid)
		},
		diff: func() string { return cmp.Diff(theirState(theirs.state), ourState(s)) },
	})
}

// Pods come and go on made-up machines: the same containers have the same CPUs, and the same pods
// are refused for the same reason, whatever the options and the alignment.
func TestCPUs(t *testing.T) {
	compareOnMachines(t, func(t *rapid.T, c *comparison) func(string) *v1.Pod {
		options := map[string]string{}
		for _, option := range strings.Fields(rapid.SampledFrom([]string{
			"", "full-pcpus-only", "strict-cpu-reservation", "distribute-cpus-across-numa", "full-pcpus-only distribute-cpus-across-numa",
			"prefer-align-cpus-by-uncorecache", "full-pcpus-only prefer-align-cpus-by-uncorecache",
		}).Draw(t, "options")) {
			options[option] = "true"
		}
		count, reserved := rapid.IntRange(1, min(3, len(c.machine.CPUs))).Draw(t, "reserved"), cpuset.New()
		if rapid.Bool().Draw(t, "certain CPUs are reserved") {
			reserved = cpuset.New(rapid.Permutation(c.machine.All().List()).Draw(t, "reserved CPUs")[:count]...)
		}
		c.addCPUs(t, count, reserved, options)
		// With whole cores only, the kubelet does not count those that init containers leave.
		return func(name string) *v1.Pod { return aPinnedPod(t, name, options["full-pcpus-only"] == "") }
	})
}

func theirState(s state.State) map[string]string {
	out := map[string]string{"pool": s.GetDefaultCPUSet().String()}
	for uid, containers := range s.GetCPUAssignments() {
		for name, own := range containers {
			out[uid+"/"+name] = own.String()
		}
	}
	return out
}

func ourState(s cpus.State) map[string]string {
	out := map[string]string{"pool": s.Pool.String()}
	for uid, containers := range s.Given {
		for name, own := range containers {
			out[string(uid)+"/"+name] = own.String()
		}
	}
	return out
}

// The checkpoints are the same, byte for byte, and each is read by both.
func TestCPUCheckpoint(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		file := filepath.Join(dir, cpus.CheckpointFile)
		_ = os.Remove(file)
		set := rapid.Map(rapid.SliceOfN(rapid.IntRange(0, 70), 0, 9), func(list []int) cpuset.CPUSet { return cpuset.New(list...) })
		s := cpus.State{Pool: set.Draw(t, "pool"), Given: givenTo(t, func() cpuset.CPUSet { return set.Draw(t, "CPUs") })}
		policy := rapid.SampledFrom([]string{cpus.None, cpus.Static}).Draw(t, "policy")
		text, err := cpus.Encode(policy, s)
		if err != nil {
			t.Fatal(err)
		}
		again := rewritten(t, file, text, func() error {
			theirs, err := state.NewCheckpointState(logger, dir, cpus.CheckpointFile, policy, containermap.NewContainerMap())
			if err != nil {
				return err
			}
			if diff := cmp.Diff(theirState(theirs), ourState(s)); diff != "" {
				t.Fatalf("the kubelet's, and ours: %s", diff)
			}
			theirs.SetDefaultCPUSet(theirs.GetDefaultCPUSet())
			return nil
		})
		if back, err := cpus.Decode(policy, again); err != nil || !maps.Equal(ourState(back), ourState(s)) {
			t.Fatalf("read back: %v, %v", back, err)
		}
	})
}

// anyProvider gives hints drawn before, and records where it is to assign.
type anyProvider struct {
	hints map[string][]topologymanager.TopologyHint
	near  topology.Nodes
}

func (p *anyProvider) GetTopologyHints(*v1.Pod, *v1.Container) map[string][]topologymanager.TopologyHint {
	return p.hints
}
func (p *anyProvider) GetPodTopologyHints(*v1.Pod) map[string][]topologymanager.TopologyHint {
	return p.hints
}
func (p *anyProvider) Allocate(*v1.Pod, *v1.Container) error { return nil }
func (p *anyProvider) AllocatePod(*v1.Pod) error             { return nil }

func (p *anyProvider) Hints(*v1.Pod, *v1.Container) topology.Hints {
	if p.hints == nil {
		return nil
	}
	out := topology.Hints{}
	for name, list := range p.hints {
		out[name] = nil
		if list != nil {
			out[name] = []topology.Hint{}
		}
		for _, h := range list {
			one := topology.Hint{Preferred: h.Preferred}
			if h.NUMANodeAffinity != nil {
				one.Nodes = topology.NodesOf(h.NUMANodeAffinity.GetBits()...)
			}
			out[name] = append(out[name], one)
		}
	}
	return out
}
func (p *anyProvider) PodHints(pod *v1.Pod) topology.Hints { return p.Hints(pod, nil) }
func (p *anyProvider) Assign(_ *v1.Pod, _ *v1.Container, near topology.Hint) error {
	p.near = near.Nodes
	return nil
}

// Whatever the providers hint at, the same nodes are chosen.
func TestAlignment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &topology.Machine{CPUs: map[int]topology.CPU{}, Distances: map[int][]uint64{}}
		for id := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			m.Nodes = append(m.Nodes, id)
		}
		nodes := nodesOf(t, m)
		policy := rapid.SampledFrom([]string{"best-effort", "restricted", "single-numa-node"}).Draw(t, "policy")
		scope := rapid.SampledFrom([]string{"container", "pod"}).Draw(t, "scope")
		options := map[string]string{"prefer-closest-numa-nodes": fmt.Sprint(rapid.Bool().Draw(t, "closest"))}
		manager, err := topologymanager.NewManager(nodes, policy, scope, options)
		if err != nil {
			t.Fatal(err)
		}
		a, err := topology.NewAlignment(policy, scope, options)
		if err != nil {
			t.Fatal(err)
		}
		var ours []topology.Provider
		var all []*anyProvider
		for range rapid.IntRange(0, 3).Draw(t, "providers") {
			p := &anyProvider{}
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
			case 1:
				p.hints = map[string][]topologymanager.TopologyHint{"r": nil}
			default:
				p.hints = map[string][]topologymanager.TopologyHint{"r": {}}
				for range rapid.IntRange(0, 4).Draw(t, "hints") {
					mask, err := bitmask.NewBitMask(rapid.SliceOfNDistinct(rapid.SampledFrom(m.Nodes), 1, -1, rapid.ID).Draw(t, "nodes")...)
					if err != nil {
						t.Fatal(err)
					}
					p.hints["r"] = append(p.hints["r"], topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: rapid.Bool().Draw(t, "preferred")})
				}
			}
			manager.AddHintProvider(logger, p)
			ours, all = append(ours, p), append(all, p)
		}
		pod := &v1.Pod{}
		pod.UID = "p"
		pod.Spec.Containers = []v1.Container{{Name: "c"}}
		result := manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
		refused := a.Assign(m, pod, ours...)
		if (refused == nil) != result.Admit || refused != nil && (refused.Reason != result.Reason || refused.Message != result.Message) {
			t.Fatalf("refused: %v, by the kubelet: %+v", refused, result)
		}
		if refused != nil || len(all) == 0 {
			return
		}
		var want topology.Nodes
		if affinity := manager.GetAffinity("p", "c").NUMANodeAffinity; affinity != nil {
			want = topology.NodesOf(affinity.GetBits()...)
		}
		if got := all[0].near; got != want {
			t.Fatalf("near %v, the kubelet near %v", got.List(), want.List())
		}
	})
}
