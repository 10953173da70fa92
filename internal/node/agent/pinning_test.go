package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent/cpus"
	"github.com/berth-k8s/berth/internal/node/agent/memory"
	"github.com/berth-k8s/berth/internal/node/agent/metrics"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// fourCPUs is a machine of four cores; with threads, of two.
func fourCPUs(threads bool) fstest.MapFS {
	files := fstest.MapFS{"cpu/online": {Data: []byte("0-3\n")}, "node/node0/cpulist": {Data: []byte("0-3\n")}}
	for cpu, siblings := range map[string]string{"0": "0,2", "1": "1,3", "2": "0,2", "3": "1,3"} {
		if threads {
			files["cpu/cpu"+cpu+"/topology/thread_siblings_list"] = &fstest.MapFile{Data: []byte(siblings)}
		}
	}
	return files
}

// pinningNode is a node of four CPUs whose containers can have CPUs of their own; CPU 0 is
// reserved.
func pinningNode(t *testing.T, o cpus.Options, objects ...runtime.Object) (*node, context.Context) {
	t.Helper()
	n, ctx := newNode(t, objects...)
	n.pin(t, ctx, o)
	return n, ctx
}

func (n *node) pin(t *testing.T, ctx context.Context, o cpus.Options) {
	t.Helper()
	c := &n.Agent.config
	c.CPUPolicy, c.CPUOptions, c.KubeReserved = cpus.Static, o, v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
	if err := n.pinning.open(*c, fourCPUs(o.FullCores), n.kubelet); err != nil {
		t.Fatal(err)
	}
	n.cgroups.pinning, n.cgroups.tree.NoQuota = &n.pinning, n.pinning.podOwns
	n.machine.cpus = 4
	n.object.node.Status.Allocatable[v1.ResourceCPU] = resource.MustParse("3900m")
	n.pods.running.Go(func() { n.placeAround(ctx) })
}

// runsOn waits until the pod's container runs on these CPUs.
func (n *node) runsOn(t *testing.T, pod, on string) {
	t.Helper()
	await(t, pod+" runs on "+on, func() bool { return n.resourcesOf(pod).GetCpusetCpus() == on })
}

// resourcesOf are those of a pod's container that runs; nil: none does.
func (n *node) resourcesOf(pod string) *runtimeapi.LinuxContainerResources {
	n.runtime.mu.Lock()
	defer n.runtime.mu.Unlock()
	for _, c := range n.runtime.containers {
		if c.status.Labels["io.kubernetes.pod.name"] == pod && c.status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return c.status.Resources.Linux
		}
	}
	return nil
}

// A container that requests whole CPUs in a Guaranteed pod has them to itself for as long as the
// pod is there: everybody else leaves them, and comes back.
func TestOwnCPUs(t *testing.T) {
	shares, owns, half := boundPod("shares"), sized("owns", "2", "50Mi"), sized("half", "500m", "50Mi")
	n, ctx := pinningNode(t, cpus.Options{}, shares, owns, half)
	n.listed.Store(true)
	n.podSeen(ctx, shares)
	n.runsOn(t, "shares", "0-3")
	n.podSeen(ctx, owns)
	n.runsOn(t, "owns", "1-2")
	n.runsOn(t, "shares", "0,3")
	n.podSeen(ctx, half)
	n.runsOn(t, "half", "0,3")
	if quota, of := n.resourcesOf("owns").GetCpuQuota(), n.groupFile("uid-owns", "cpu.max"); quota != -1 || of != "" {
		t.Errorf("a container with CPUs of its own has the quota %d, its pod %q", quota, of)
	}
	if quota, of := n.resourcesOf("half").GetCpuQuota(), n.groupFile("uid-half", "cpu.max"); of != "50000 100000" {
		t.Errorf("a container that shares CPUs has the quota %d, its pod %q", quota, of)
	}
	if text, err := os.ReadFile(filepath.Join(n.Agent.config.RootDir, cpus.CheckpointFile)); !strings.HasPrefix(string(text), `{"policyName":"static","defaultCpuSet":"0,3","entries":{"uid-owns":{"c":"1-2"}},`) {
		t.Errorf("checkpoint: %s, %v", text, err)
	}
	if allocatable := n.nodeStatus(n.Node(), time.Now()).Allocatable; allocatable.Cpu().String() != "3900m" {
		t.Errorf("allocatable: %v", allocatable)
	}
	text := exposition(t, n)
	for _, want := range []string{
		"kubelet_cpu_manager_pinning_requests_total 1\n", "kubelet_cpu_manager_pinning_errors_total 0\n", "kubelet_cpu_manager_shared_pool_size_millicores 1000\n",
		"kubelet_cpu_manager_exclusive_cpu_allocation_count 2\n", "kubelet_cpu_manager_allocation_per_numa{numa_node=\"0\"} 2\n", "kubelet_topology_manager_admission_requests_total 1\n",
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	n.podGone(owns)
	n.runsOn(t, "shares", "0-3")
	n.runsOn(t, "half", "0-3")
}

// An agent that was killed goes on with what was given; what a pod had that was deleted meanwhile
// is free, and a pod that came meanwhile waits for it.
func TestOwnCPUsOutliveTheAgent(t *testing.T) {
	owns, gone, shares := sized("owns", "1", "50Mi"), sized("gone", "2", "50Mi"), boundPod("shares")
	n, ctx := pinningNode(t, cpus.Options{}, owns, gone, shares)
	n.listed.Store(true)
	n.podSeen(ctx, gone)
	n.runsOn(t, "gone", "1-2")
	n.podSeen(ctx, owns)
	n.runsOn(t, "owns", "3")
	n.podSeen(ctx, shares)
	n.runsOn(t, "shares", "0")
	for _, name := range []string{"owns", "shares"} {
		await(t, "the status is in the API", func() bool { return statusIn(t, n.api, name).Phase == v1.PodRunning })
	}

	comes := sized("comes", "2", "50Mi")
	next, ctx := newNode(t)
	next.Agent.config.RootDir, next.Agent.runtime.Runtime, next.Agent.client, next.api = n.Agent.config.RootDir, n.runtime, n.api, n.api
	next.runtime, next.Agent.statuses.client = n.runtime, n.api
	n.runtime.mu.Lock()
	for id, c := range n.runtime.containers { // the machine was restarted for the pod that is gone: nothing of it runs
		if c.status.Labels["io.kubernetes.pod.name"] == "gone" {
			delete(n.runtime.sandboxes, c.sandbox)
			delete(n.runtime.containers, id)
		}
	}
	updates := len(n.runtime.updates)
	n.runtime.mu.Unlock()
	next.pin(t, ctx, cpus.Options{})
	if _, err := n.api.CoreV1().Pods("default").Create(ctx, comes, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"comes", "owns", "shares"} {
		pod, err := n.api.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		next.podSeen(ctx, pod)
	}
	await(t, "there are no CPUs for the pod that came", func() bool {
		return strings.Contains(exposition(t, next), "\nkubelet_topology_manager_admission_errors_total 1\n")
	})
	next.listed.Store(true)
	next.sweep(ctx)
	next.runsOn(t, "comes", "1-2")
	next.runsOn(t, "owns", "3")
	next.runsOn(t, "shares", "0")
	n.runtime.mu.Lock()
	defer n.runtime.mu.Unlock()
	for _, u := range n.runtime.updates[updates:] {
		on, err := cpuset.Parse(u.linux.GetCpusetCpus())
		if err != nil || on.Contains(3) && on.Size() > 1 {
			t.Errorf("a container was moved to %q, where another is alone", on)
		}
	}
}

// Half a core cannot be given away where cores are given as a whole.
func TestCPUsThatCannotBeGiven(t *testing.T) {
	odd, most := sized("odd", "1", "50Mi"), sized("most", "2", "50Mi")
	more := sized("more", "2", "50Mi")
	n, ctx := pinningNode(t, cpus.Options{FullCores: true}, odd, most, more)
	n.object.node.Status.Allocatable[v1.ResourceCPU] = resource.MustParse("8")
	n.listed.Store(true)
	refused := func(pod *v1.Pod, reason, message string) {
		t.Helper()
		n.podSeen(ctx, pod)
		await(t, pod.Name+" is refused", func() bool {
			status := statusIn(t, n.api, pod.Name)
			return status.Phase == v1.PodFailed && status.Reason == reason && status.Message == "Pod was rejected: "+message
		})
	}
	refused(odd, "SMTAlignmentError", "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2")
	n.podSeen(ctx, most)
	n.runsOn(t, "most", "1,3")
	refused(more, "SMTAlignmentError", "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 0, requested CPUs = 2, CPUs per core = 2")
	if events := allEvents(n); !strings.Contains(events, "Warning SMTAlignmentError SMT Alignment Error: requested 1 cpus") {
		t.Errorf("events:\n%s", events)
	}
}

// Whole CPUs that a container has to itself are not changed in place.
func TestOwnCPUsAreNotResized(t *testing.T) {
	pod := sized("p", "1", "50Mi")
	n, ctx := pinningNode(t, cpus.Options{}, pod)
	n.listed.Store(true)
	n.podSeen(ctx, pod)
	n.runs(t, "p", "1")
	n.podSeen(ctx, n.resized(t, "p", "2", "50Mi"))
	await(t, "infeasible", func() bool {
		return pendingOf(statusIn(t, n.api, "p")) == `Infeasible: Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`
	})
	n.podSeen(ctx, n.resized(t, "p", "1", "80Mi"))
	await(t, "its memory is", func() bool {
		status := statusIn(t, n.api, "p")
		return pendingOf(status) == "" && status.ContainerStatuses[0].Resources.Limits.Memory().String() == "80Mi"
	})
	n.runtime.mu.Lock()
	defer n.runtime.mu.Unlock()
	for _, u := range n.runtime.updates {
		if u.linux.CpuQuota != -1 {
			t.Errorf("the container has the quota %d", u.linux.CpuQuota)
		}
	}
}

// A checkpoint of another policy, one that is damaged, and one that does not fit the machine keep
// the agent from starting, in the kubelet's words.
func TestPolicyIsNotChangedOverPods(t *testing.T) {
	dir := t.TempDir()
	open := func(change func(*Config)) error {
		c := DefaultConfig()
		c.RootDir, c.SystemReserved = dir, v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		change(&c)
		return new(pinning).open(c, fourCPUs(true), metrics.NewKubelet("node-1", nil))
	}
	static := func(c *Config) { c.CPUPolicy = cpus.Static }
	if err := open(func(*Config) {}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, cpus.CheckpointFile)
	want := `could not restore state from checkpoint: configured policy "static" differs from state checkpoint policy "none", ` +
		`please drain this node and delete the CPU manager checkpoint file "` + file + `" before restarting Kubelet`
	if err := open(static); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := open(static); err != nil {
			t.Fatal(err)
		}
	}
	for want, change := range map[string]func(*Config){
		"reserved-cpus: 3-4 is not a subset of online-cpus: 0-3": func(c *Config) { c.ReservedCPUs = cpuset.New(3, 4) },
		"unable to reserve the required amount of CPUs":          func(c *Config) { c.SystemReserved[v1.ResourceCPU] = resource.MustParse("5") },
		"differs from state checkpoint policy":                   func(c *Config) { c.CPUPolicy = "" },
		"some of strictly reserved cpus":                         func(c *Config) { c.CPUOptions.StrictReservation = true },
		"prefer-closest-numa-nodes: the kernel does not tell": func(c *Config) {
			c.Alignment = topology.Alignment{Policy: topology.BestEffort, Closest: true, MostNodes: 8}
		},
	} {
		if err := open(func(c *Config) { static(c); change(c) }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := os.WriteFile(file, []byte(`{"policyName":"static","defaultCpuSet":"0-2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(static); err == nil || !strings.Contains(err.Error(), `please drain node and remove policy state file`) ||
		!strings.Contains(err.Error(), `current set of available CPUs "0-3" doesn't match with CPUs in state "0-2"`) {
		t.Error(err)
	}
}

// A full disk keeps no agent from starting that has nothing new to record.
func TestCheckpointOnAFullDisk(t *testing.T) {
	c := DefaultConfig()
	c.RootDir, c.SystemReserved = t.TempDir(), v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
	open := func(change func(*Config)) error {
		c := c
		change(&c)
		return new(pinning).open(c, fourCPUs(false), metrics.NewKubelet("node-1", nil))
	}
	static := func(c *Config) { c.CPUPolicy = cpus.Static }
	unwritable := func(c *Config) { c.RootDir = filepath.Join(c.RootDir, "none") }
	if err := open(unwritable); err != nil {
		t.Errorf("the policy none: %v", err)
	}
	if err := open(func(c *Config) { static(c); unwritable(c) }); err == nil {
		t.Error("the policy static begins without a checkpoint")
	}
	file := filepath.Join(c.RootDir, cpus.CheckpointFile)
	var first os.FileInfo
	for range 2 {
		if err := open(static); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !os.SameFile(first, info) {
			t.Error("a checkpoint that has not changed was written again")
		}
		first = info
	}
}

// CPUs of a pod that was deleted while no agent ran are free, whatever else of it cannot be
// removed.
func TestOwnCPUsAreFreeDespiteLeftovers(t *testing.T) {
	gone := sized("gone", "2", "50Mi")
	n, ctx := pinningNode(t, cpus.Options{})
	n.listed.Store(true)
	if refused, err := n.pinning.assign(gone, nil); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	folder := n.volumes.PodDir(gone.UID)
	if err := errors.Join(os.MkdirAll(filepath.Dir(folder), 0o755), os.WriteFile(folder, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := n.volumes.Unmount(t.Context(), gone.UID); err == nil {
		t.Fatal("its volumes could be removed")
	}
	n.sweep(ctx)
	if holders := n.pinning.holders(); len(holders) != 0 {
		t.Errorf("%v have CPUs", holders)
	}
}

// With the memory manager's static policy, a Guaranteed pod's container has memory of one NUMA
// node, which is in the checkpoint before it runs, and free when the pod has ended.
func TestOwnMemory(t *testing.T) {
	owns, shares := sized("owns", "500m", "50Mi"), boundPod("shares")
	n, ctx := newNode(t, owns, shares)
	c := &n.Agent.config
	c.MemoryPolicy, c.ReservedMemory = memory.Static, memory.Reserved{1: {v1.ResourceMemory: resource.MustParse("150Mi")}}
	c.KubeReserved, c.Eviction.Hard = v1.ResourceList{v1.ResourceMemory: resource.MustParse("50Mi")}, map[string]string{"memory.available": "100Mi"}
	system := fourCPUs(false)
	system["node/node0/meminfo"] = &fstest.MapFile{Data: []byte("Node 0 MemTotal: 20480 kB\n")} // 20Mi
	system["node/node1/cpulist"] = &fstest.MapFile{Data: []byte("\n")}
	system["node/node1/meminfo"] = &fstest.MapFile{Data: []byte("Node 1 MemTotal: 409600 kB\n")} // 400Mi
	open := func(p *pinning) error {
		return errors.Join(p.open(*c, system, n.kubelet), p.openMemory(*c, system, n.capacity()))
	}
	if err := open(&n.pinning); err != nil {
		t.Fatal(err)
	}
	n.listed.Store(true)
	n.podSeen(ctx, owns)
	n.podSeen(ctx, shares)
	await(t, "owns runs", func() bool { return n.resourcesOf("owns").GetCpusetMems() == "1" })
	await(t, "shares runs", func() bool { return n.resourcesOf("shares") != nil })
	if mems := n.resourcesOf("shares").GetCpusetMems(); mems != "" {
		t.Errorf("shares has memory of %s", mems)
	}
	text, err := os.ReadFile(filepath.Join(c.RootDir, memory.CheckpointFile))
	if err != nil || !strings.Contains(string(text), `"entries":{"uid-owns":{"c":[{"numaAffinity":[1],"type":"memory","size":52428800}]}}`) {
		t.Errorf("checkpoint: %s, %v", text, err)
	}
	n.podGone(owns)
	await(t, "its memory is free", func() bool { return len(n.pinning.blocks("uid-owns", "c")) == 0 })
	if blocks := n.pinning.allocatableBlocks(); len(blocks) != 2 || blocks[1].Size != 250<<20 {
		t.Errorf("allocatable: %+v", blocks)
	}
	c.ReservedMemory = memory.Reserved{0: {v1.ResourceMemory: resource.MustParse("10Mi")}, 1: {v1.ResourceMemory: resource.MustParse("140Mi")}}
	if err := open(new(pinning)); err == nil || !strings.Contains(err.Error(), "the expected machine state is different from the real one") {
		t.Errorf("with another reservation: %v", err)
	}
	c.MemoryPolicy = ""
	if err := open(new(pinning)); err == nil || !strings.Contains(err.Error(), `configured policy "None" differs from state checkpoint policy "Static"`) {
		t.Errorf("with another policy: %v", err)
	}
}
