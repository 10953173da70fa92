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
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/node/agent/cpus"
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
	return p.Policy.GetTopologyHints(klog.Background(), p.state, pod, c)
}

func (p memoryProvider) GetPodTopologyHints(pod *v1.Pod) map[string][]topologymanager.TopologyHint {
	return p.Policy.GetPodTopologyHints(klog.Background(), p.state, pod)
}

func (p memoryProvider) Allocate(pod *v1.Pod, c *v1.Container) error {
	return p.Policy.Allocate(klog.Background(), p.state, pod, c)
}

func (p memoryProvider) AllocatePod(pod *v1.Pod) error {
	return p.Policy.AllocatePod(klog.Background(), p.state, pod)
}

func (p memoryProvider) remove(uid string) {
	for name := range p.state.GetMemoryAssignments()[uid] {
		p.RemoveContainer(klog.Background(), p.state, uid, name)
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

// Pods come and go on made-up machines: the same containers have memory of the same nodes, alone or
// with CPUs of their own, and the same pods are refused for the same reason.
func TestMemory(t *testing.T) {
	logger := klog.Background()
	rapid.Check(t, func(t *rapid.T) {
		m, theirMachine, nodes := aMachine(t)
		banks, reserved, theirReserved, all := banksOf(t, nodes)
		policy := rapid.SampledFrom([]string{"none", "best-effort", "restricted", "single-numa-node"}).Draw(t, "alignment")
		scope := rapid.SampledFrom([]string{"container", "pod"}).Draw(t, "scope")
		manager, err := topologymanager.NewManager(nodes, policy, scope, nil)
		if err != nil {
			t.Fatal(err)
		}
		static, err := memorymanager.NewPolicyStatic(logger, &cadvisor.MachineInfo{Topology: nodes}, theirReserved, manager)
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
		alignment, err := topology.NewAlignment(policy, scope, nil)
		if err != nil {
			t.Fatal(err)
		}

		withCPUs := rapid.Bool().Draw(t, "with CPUs of their own")
		var theirCPUs cpuProvider
		var ourCPUs *cpus.Policy
		var pinned cpus.State
		if withCPUs {
			theirPolicy, err := cpumanager.NewStaticPolicy(logger, theirMachine, 1, cpuset.New(), manager, nil)
			if err != nil {
				t.Fatal(err)
			}
			theirCPUs = cpuProvider{theirPolicy, cpustate.NewMemoryState(logger)}
			if err := theirPolicy.Start(logger, theirCPUs.state); err != nil {
				t.Fatal(err)
			}
			manager.AddHintProvider(logger, theirCPUs)
			if ourCPUs, err = cpus.New(m, 1, cpuset.New(), cpus.Options{}); err != nil {
				t.Fatal(err)
			}
			if pinned, err = ourCPUs.Begin(cpus.State{}); err != nil {
				t.Fatal(err)
			}
		}
		manager.AddHintProvider(logger, theirs)

		var there []string
		for i := range rapid.IntRange(1, 12).Draw(t, "steps") {
			if len(there) > 0 && rapid.IntRange(0, 2).Draw(t, "a pod goes") == 0 {
				uid := rapid.SampledFrom(there).Draw(t, "goes")
				there = slices.DeleteFunc(there, func(other string) bool { return other == uid })
				theirs.remove(uid)
				s = s.Release(types.UID(uid))
				if withCPUs {
					theirCPUs.remove(uid)
					pinned = pinned.Release(types.UID(uid))
				}
			} else {
				pod := aPodWithMemory(t, fmt.Sprint("p", i))
				result := manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
				draft := ours.Draft(s)
				providers := []topology.Provider{draft}
				var pins *cpus.Draft
				if withCPUs {
					pins = ourCPUs.Draft(pinned)
					providers = []topology.Provider{pins, draft}
				}
				refused := alignment.Assign(m, pod, providers...)
				got, want := "", ""
				if !result.Admit {
					want = result.Reason + ": " + result.Message
					theirs.remove(pod.Name)
					if withCPUs {
						theirCPUs.remove(pod.Name)
					}
				}
				if refused != nil {
					got = refused.Reason + ": " + refused.Message
				} else {
					there = append(there, pod.Name)
					s = draft.State()
					if withCPUs {
						pinned = pins.State()
					}
				}
				if got != want {
					t.Fatalf("%s: %q, the kubelet says %q", pod.Name, got, want)
				}
			}
			if diff := cmp.Diff(theirMemory(theirs.state), ourMemory(s)); diff != "" {
				t.Fatalf("the kubelet's, and ours: %s", diff)
			}
			if again, err := ours.Begin(s); err != nil || cmp.Diff(ourMemory(again), ourMemory(s)) != "" {
				t.Fatalf("an agent would not go on with it: %v", err)
			}
		}
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
		s := memory.State{Machine: memory.Machine{}, Given: map[types.UID]map[string][]memory.Block{}}
		for _, id := range ids {
			node := &memory.Node{NumberOfAssignments: rapid.IntRange(0, 9).Draw(t, "assignments"), MemoryMap: map[v1.ResourceName]*memory.Table{}, Cells: []int{id}}
			for _, name := range []v1.ResourceName{v1.ResourceMemory, hugePages} {
				node.MemoryMap[name] = &memory.Table{TotalMemSize: some.Draw(t, "total"), SystemReserved: some.Draw(t, "reserved"), Allocatable: some.Draw(t, "allocatable"), Reserved: some.Draw(t, "given"), Free: some.Draw(t, "free")}
			}
			s.Machine[id] = node
		}
		name := rapid.StringMatching(`[a-z][a-z0-9-]{0,5}`)
		for range rapid.IntRange(0, 3).Draw(t, "pods") {
			uid := types.UID(name.Draw(t, "pod"))
			s.Given[uid] = map[string][]memory.Block{}
			for range rapid.IntRange(1, 3).Draw(t, "containers") {
				s.Given[uid][name.Draw(t, "container")] = []memory.Block{{NUMAAffinity: ids, Type: v1.ResourceMemory, Size: some.Draw(t, "size")}}
			}
		}
		policy := rapid.SampledFrom([]string{memory.None, memory.Static}).Draw(t, "policy")
		text, err := memory.Encode(policy, s)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		theirs, err := state.NewCheckpointState(klog.Background(), dir, memory.CheckpointFile, policy)
		if err != nil {
			t.Fatalf("the kubelet cannot read %s: %v", text, err)
		}
		theirs.SetMachineState(theirs.GetMachineState()) // has it written
		again, err := os.ReadFile(file)
		if err != nil || string(again) != string(text) {
			t.Fatalf("the kubelet writes %s, %v\nnot            %s", again, err, text)
		}
		if back, err := memory.Decode(policy, again); err != nil || cmp.Diff(ourMemory(back), ourMemory(s)) != "" {
			t.Fatalf("read back: %v, %v", back, err)
		}
	})
}
