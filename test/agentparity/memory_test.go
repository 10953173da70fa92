package agentparity

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	cadvisor "github.com/google/cadvisor/info/v1"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/node/agent/memory"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

const hugePages = v1.ResourceName("hugepages-2Mi")

// memoryProvider is the kubelet's static policy as a provider of hints.
type memoryProvider struct {
	memorymanager.Policy
	state state.State
}

func (p memoryProvider) GetTopologyHints(pod *v1.Pod, c *v1.Container) map[string][]topologymanager.TopologyHint {
	return p.Policy.GetTopologyHints(logger, p.state, pod, c)
}

func (p memoryProvider) GetPodTopologyHints(pod *v1.Pod) map[string][]topologymanager.TopologyHint {
	return p.Policy.GetPodTopologyHints(logger, p.state, pod)
}

func (p memoryProvider) Allocate(pod *v1.Pod, c *v1.Container) error {
	return p.Policy.Allocate(logger, p.state, pod, c)
}

func (p memoryProvider) AllocatePod(pod *v1.Pod) error {
	return p.Policy.AllocatePod(logger, p.state, pod)
}

func (p memoryProvider) remove(uid string) {
	for name := range p.state.GetMemoryAssignments()[uid] {
		p.RemoveContainer(logger, p.state, uid, name)
	}
}

// banksOf are made up for the nodes of a machine, in both forms, with what is reserved of each: the
// kubelet's type for that has no name outside of its package.
func banksOf(t *rapid.T, nodes []cadvisor.Node) (map[int]memory.Bank, memory.Reserved, map[int]map[v1.ResourceName]uint64, v1.ResourceList) {
	ours, reserved, theirs, all := map[int]memory.Bank{}, memory.Reserved{}, map[int]map[v1.ResourceName]uint64{}, v1.ResourceList{}
	add := func(node int, name v1.ResourceName, amount int64) {
		if amount == 0 {
			return
		}
		if reserved[node] == nil {
			reserved[node], theirs[node] = v1.ResourceList{}, map[v1.ResourceName]uint64{}
		}
		reserved[node][name], theirs[node][name] = *resource.NewQuantity(amount, resource.BinarySI), uint64(amount)
		sum := all[name]
		sum.Add(reserved[node][name])
		all[name] = sum
	}
	for i := range nodes {
		node := &nodes[i]
		bank := memory.Bank{Total: rapid.Uint64Range(4, 9).Draw(t, "GiB") << 30}
		pages := rapid.Uint64Range(0, 1024).Draw(t, "huge pages")
		bank.HugePages = map[v1.ResourceName]uint64{hugePages: pages << 21}
		node.Memory, node.HugePages = bank.Total, []cadvisor.HugePagesInfo{{PageSize: 2048, NumPages: pages}}
		ours[node.Id] = bank
		least := int64(0)
		if i == 0 {
			least = 1
		}
		add(node.Id, v1.ResourceMemory, rapid.Int64Range(least, 1<<30).Draw(t, "reserved"))
		if pages > 100 {
			add(node.Id, hugePages, rapid.Int64Range(0, 50).Draw(t, "reserved huge pages")<<21)
		}
	}
	return ours, reserved, theirs, all
}

// aPodWithMemory also requests amounts that a node has not alone.
func aPodWithMemory(t *rapid.T, name string) *v1.Pod {
	pod := aPinnedPod(t, name, true)
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			amount := *resource.NewQuantity(rapid.Int64Range(1, 6<<30).Draw(t, "memory"), resource.BinarySI)
			if rapid.Bool().Draw(t, "modest") {
				amount = *resource.NewQuantity(rapid.Int64Range(1, 2<<30).Draw(t, "memory"), resource.BinarySI)
			}
			pages := *resource.NewQuantity(rapid.Int64Range(1, 400).Draw(t, "huge pages")<<21, resource.BinarySI)
			huge := rapid.IntRange(0, 2).Draw(t, "with huge pages") == 0
			for _, into := range []v1.ResourceList{list[i].Resources.Requests, list[i].Resources.Limits} {
				if into == nil {
					continue
				}
				into[v1.ResourceMemory] = amount
				if huge {
					into[hugePages] = pages
				}
			}
		}
	}
	return pod
}

// addMemory adds memory of certain NUMA nodes for containers. It needs nodes that have some.
func (c *comparison) addMemory(t *rapid.T, banks map[int]memory.Bank, reserved memory.Reserved, theirReserved map[int]map[v1.ResourceName]uint64, all v1.ResourceList) {
	static, err := memorymanager.NewPolicyStatic(logger, &cadvisor.MachineInfo{Topology: c.nodes}, theirReserved, c.manager)
	if err != nil {
		t.Fatal(err)
	}
	theirs := memoryProvider{static, state.NewMemoryState(logger)}
	if err := static.Start(logger, theirs.state); err != nil {
		t.Fatal(err)
	}
	ours, err := memory.New(banks, reserved, all)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ours.Begin(memory.State{})
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
		diff: func() string {
			again, err := ours.Begin(s)
			if err != nil {
				return fmt.Sprint("an agent would not go on with it: ", err)
			}
			return cmp.Diff(theirMemory(theirs.state), ourMemory(s)) + cmp.Diff(ourMemory(again), ourMemory(s))
		},
		torn: func() bool { return isTorn(theirs.state.GetMachineState()) },
	})
}

// isTorn reports whether NUMA nodes disagree on which of them are one group. The kubelet comes to
// that, rarely, when it takes back what a pod had that was refused halfway.
func isTorn(machine state.NUMANodeMap) bool {
	for id, node := range machine {
		for _, cell := range node.Cells {
			if !slices.Contains(machine[cell].Cells, id) {
				return true
			}
		}
	}
	return false
}

// Pods come and go on made-up machines: the same containers have memory of the same nodes, alone or
// with CPUs of their own, and the same pods are refused for the same reason.
func TestMemory(t *testing.T) {
	compareOnMachines(t, func(t *rapid.T, c *comparison) func(string) *v1.Pod {
		banks, reserved, theirReserved, all := banksOf(t, c.nodes)
		if rapid.Bool().Draw(t, "with CPUs of their own") {
			c.addCPUs(t, 1, cpuset.New(), nil)
		}
		c.addMemory(t, banks, reserved, theirReserved, all)
		return func(name string) *v1.Pod { return aPodWithMemory(t, name) }
	})
}

// theirMemory and ourMemory describe a state. How much is free on which node of a group makes no
// difference, as to the kubelet's own check: what a pod had that was refused halfway goes back to
// the first nodes there, and has never been given away here.
func theirMemory(s state.State) map[string]string {
	out := map[string]string{}
	machine := s.GetMachineState()
	for id, node := range machine {
		slices.Sort(node.Cells)
		out[fmt.Sprint("node ", id)] = fmt.Sprint(node.NumberOfAssignments, node.Cells)
		for name, table := range node.MemoryMap {
			var free, reserved uint64
			for _, cell := range node.Cells {
				free, reserved = free+machine[cell].MemoryMap[name].Free, reserved+machine[cell].MemoryMap[name].Reserved
			}
			out[fmt.Sprint("node ", id, " ", name)] = fmt.Sprint(table.TotalMemSize, table.SystemReserved, table.Allocatable, free, reserved)
		}
	}
	for uid, containers := range s.GetMemoryAssignments() {
		for name, blocks := range containers {
			for _, b := range blocks {
				out[uid+"/"+name+" "+string(b.Type)] = fmt.Sprint(b.Size, b.NUMAAffinity)
			}
		}
	}
	return out
}

func ourMemory(s memory.State) map[string]string {
	out := map[string]string{}
	for id, node := range s.Machine {
		out[fmt.Sprint("node ", id)] = fmt.Sprint(node.NumberOfAssignments, node.Cells)
		for name, table := range node.MemoryMap {
			var free, reserved uint64
			for _, cell := range node.Cells {
				free, reserved = free+s.Machine[cell].MemoryMap[name].Free, reserved+s.Machine[cell].MemoryMap[name].Reserved
			}
			out[fmt.Sprint("node ", id, " ", name)] = fmt.Sprint(table.TotalMemSize, table.SystemReserved, table.Allocatable, free, reserved)
		}
	}
	for uid, containers := range s.Given {
		for name, blocks := range containers {
			for _, b := range blocks {
				out[string(uid)+"/"+name+" "+string(b.Type)] = fmt.Sprint(b.Size, b.NUMAAffinity)
			}
		}
	}
	return out
}

// The checkpoints are the same, byte for byte, and each is read by both.
func TestMemoryCheckpoint(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		file := filepath.Join(dir, memory.CheckpointFile)
		_ = os.Remove(file)
		ids := rapid.SliceOfNDistinct(rapid.IntRange(0, 7), 1, 4, rapid.ID).Draw(t, "nodes")
		some := rapid.Uint64Range(0, 1<<40)
		s := memory.State{Machine: memory.Machine{}, Given: givenTo(t, func() []memory.Block {
			return []memory.Block{{NUMAAffinity: ids, Type: v1.ResourceMemory, Size: some.Draw(t, "size")}}
		})}
		for _, id := range ids {
			node := &memory.Node{NumberOfAssignments: rapid.IntRange(0, 9).Draw(t, "assignments"), MemoryMap: map[v1.ResourceName]*memory.Table{}, Cells: []int{id}}
			for _, name := range []v1.ResourceName{v1.ResourceMemory, hugePages} {
				node.MemoryMap[name] = &memory.Table{TotalMemSize: some.Draw(t, "total"), SystemReserved: some.Draw(t, "reserved"), Allocatable: some.Draw(t, "allocatable"), Reserved: some.Draw(t, "given"), Free: some.Draw(t, "free")}
			}
			s.Machine[id] = node
		}
		policy := rapid.SampledFrom([]string{memory.None, memory.Static}).Draw(t, "policy")
		text, err := memory.Encode(policy, s)
		if err != nil {
			t.Fatal(err)
		}
		again := rewritten(t, file, text, func() error {
			theirs, err := state.NewCheckpointState(logger, dir, memory.CheckpointFile, policy)
			if err == nil {
				theirs.SetMachineState(theirs.GetMachineState())
			}
			return err
		})
		if back, err := memory.Decode(policy, again); err != nil || cmp.Diff(ourMemory(back), ourMemory(s)) != "" {
			t.Fatalf("read back: %v, %v", back, err)
		}
	})
}
