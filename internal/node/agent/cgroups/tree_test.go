package cgroups

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// On the machine's own cgroups: made, sized, used, emptied by force, removed.
func TestRealGroup(t *testing.T) {
	root := realRoot(t)
	tree, err := Open(Options{Root: root, PodPIDs: 50})
	if err != nil {
		t.Fatal(err)
	}
	p := limitedPod("real")
	parent, err := tree.EnsurePod(p)
	if err != nil {
		t.Fatal(err)
	}
	if want := root + "/kubepods/podreal"; parent != want {
		t.Errorf("parent %s, want %s", parent, want)
	}
	if memory, pids, err := tree.files.limits(parent); err != nil || memory != 64<<20 || pids != 50 {
		t.Errorf("limits read back: memory %d, pids %d, %v; want 64Mi and 50", memory, pids, err)
	}
	process := runIn(t, tree, filepath.Join(parent, "container"))
	var usage Usage
	for end := time.Now().Add(time.Minute); usage.Memory <= 0 || usage.CPU <= 0; time.Sleep(10 * time.Millisecond) {
		if usage, err = tree.ContainerUsage("real", "container"); err != nil || time.Now().After(end) {
			t.Fatalf("usage of a container at work: %+v, %v", usage, err)
		}
	}
	if usage.Tasks != 1 {
		t.Errorf("tasks: %d, want 1", usage.Tasks)
	}
	if uids, err := tree.Pods(); err != nil || !slices.Equal(uids, []types.UID{"real"}) {
		t.Errorf("pods with groups: %v, %v", uids, err)
	}
	// Again, larger: an existing group is brought up to date.
	for _, list := range []v1.ResourceList{p.Spec.Containers[0].Resources.Limits, p.Spec.Containers[0].Resources.Requests} {
		list[v1.ResourceMemory] = resource.MustParse("96Mi")
	}
	if _, err := tree.EnsurePod(p); err != nil {
		t.Fatal(err)
	}
	if memory, _, err := tree.files.limits(parent); err != nil || memory != 96<<20 {
		t.Errorf("limit after the pod has grown: %d, %v", memory, err)
	}
	if err := tree.RemovePod("real"); err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process that was left: %v, want it killed", err)
	}
	if uids, err := tree.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("pods with groups after removal: %v, %v", uids, err)
	}
	if err := tree.RemovePod("real"); err != nil {
		t.Errorf("removing it again: %v", err)
	}
}

// Where the root has limits, it is the machine.
func TestLimitedRootIsTheMachine(t *testing.T) {
	root := realRoot(t)
	tree, err := Open(Options{Root: root + "/inner"})
	if err != nil {
		t.Fatal(err)
	}
	whole, _, err := tree.Machine()
	if err != nil || whole.Capacity < 1<<30 || whole.Available() <= 0 {
		t.Fatalf("the machine's memory: %+v, %v", whole, err)
	}
	if err := tree.files.set(root, Sizes{Memory: 300 << 20, PIDs: 64}); err != nil {
		t.Fatal(err)
	}
	runIn(t, tree, root+"/inner/kubepods/burstable/podx/c")
	memory, tasks, err := tree.Machine()
	if err != nil {
		t.Fatal(err)
	}
	if memory.Capacity != 300<<20 || memory.Used <= 0 || memory.Used > 100<<20 {
		t.Errorf("memory %+v, want a capacity of 300Mi and a little used", memory)
	}
	if tasks != (Level{64, 1}) {
		t.Errorf("tasks %+v, want one of 64", tasks)
	}
}

// On a tree of plain files, version 2, with a process that is really there.
func TestVersion2(t *testing.T) {
	tree := fake(t, "v2", Options{})
	if _, err := tree.EnsurePod(limitedPod("a-b")); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"/", "/kubepods", "/kubepods/poda-b"} {
		if on, err := read(filepath.Join(tree.Mount, group), "cgroup.subtree_control"); err != nil || on == "" {
			t.Errorf("%s: controllers switched on for what is beneath: %q, %v", group, on, err)
		}
	}
	if err := tree.Enforce(v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("4Gi")}); err != nil {
		t.Fatal(err)
	}
	container := filepath.Join(tree.Mount, "/kubepods/poda-b/c1")
	left := exec.Command("sleep", "600")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		"cpu.stat": "usage_usec 1500000\nuser_usec 1000000\n", "memory.current": "50000000\n", "pids.current": "3\n",
		"memory.stat":  "anon 30000000\ninactive_file 10000000\npgfault 7\npgmajfault 1\n",
		"cgroup.procs": strings.Join([]string{"0", "1", itoa(left.Process.Pid)}, "\n"), // 0 and 1 are nobody's to kill
	} {
		if err := os.MkdirAll(container, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(container, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	usage, err := tree.ContainerUsage("a-b", "c1")
	usage.Time = time.Time{}
	want := Usage{CPU: 1500 * time.Millisecond, Memory: 50000000, WorkingSet: 40000000, RSS: 30000000, Faults: 7, MajorFault: 1, Tasks: 3}
	if err != nil || usage != want {
		t.Errorf("usage %+v, %v; want %+v", usage, err, want)
	}
	if err := tree.RemovePod("a-b"); err != nil {
		t.Fatal(err)
	}
	if err := left.Wait(); err == nil {
		t.Error("the process that was left has ended by itself")
	}
	if _, err := tree.PodUsage("a-b"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("usage of a pod that is gone: %v", err)
	}
}

func TestPodsAreFoundByEitherDriversNames(t *testing.T) {
	for _, driver := range []string{Cgroupfs, Systemd} {
		for _, version := range []string{"v1", "v2"} {
			tree := fake(t, version, Options{Driver: driver, Root: "/berth-x"})
			bestEffort := limitedPod("c-d")
			bestEffort.Spec.Containers[0].Resources = v1.ResourceRequirements{}
			for _, p := range []*v1.Pod{limitedPod("a-b"), bestEffort} {
				if _, err := tree.EnsurePod(p); err != nil {
					t.Fatal(err)
				}
			}
			if uids, err := tree.Pods(); err != nil || !slices.Equal(uids, []types.UID{"a-b", "c-d"}) {
				t.Errorf("%s %s: %v, %v", driver, version, uids, err)
			}
		}
	}
}

// An agent that starts again finds the groups of pods that run, and takes nothing from them.
func TestShareSurvivesARestart(t *testing.T) {
	tree := fake(t, "v2", Options{})
	burst := limitedPod("a")
	delete(burst.Spec.Containers[0].Resources.Limits, v1.ResourceMemory)
	if err := tree.Share([]*v1.Pod{burst}); err != nil {
		t.Fatal(err)
	}
	before := settings(t, tree, "/kubepods/burstable")
	again, err := Open(tree.Options)
	if err != nil {
		t.Fatal(err)
	}
	if now := settings(t, again, "/kubepods/burstable"); now != before || now != "cpu.weight=20" {
		t.Errorf("%s before, %s after; want cpu.weight=20", before, now)
	}
	if err := again.Share(nil); err != nil {
		t.Fatal(err)
	}
	if now := settings(t, again, "/kubepods/burstable"); now != "cpu.weight=1" {
		t.Errorf("without pods: %s", now)
	}
}

func TestBadOptions(t *testing.T) {
	for _, options := range []Options{{Driver: "docker"}, {Root: "/a_b"}, {Root: "/a/../b"}, {Mount: t.TempDir()}} {
		if _, err := Open(options); err == nil {
			t.Errorf("%+v was taken", options)
		}
	}
}

func limitedPod(uid string) *v1.Pod {
	limits := v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("64Mi")}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, Namespace: "default", UID: types.UID(uid)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "app", Resources: v1.ResourceRequirements{Limits: limits.DeepCopy(), Requests: limits.DeepCopy()}}}},
		Status: v1.PodStatus{QOSClass: ""},
	}
}

// realRoot is a group of the machine that goes when the test ends.
func realRoot(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("cgroups of this machine: must be root")
	}
	root := "/berth-cgroups-" + itoa(os.Getpid())
	probe, err := Open(Options{Root: root})
	if err != nil {
		t.Skipf("cgroups of this machine: %v", err)
	}
	t.Cleanup(func() {
		if err := probe.remove(root); err != nil {
			t.Error(err)
		}
	})
	return root
}

// runIn starts a process in a group, in every hierarchy, and lets it work once it is there: what it
// used before is charged elsewhere.
func runIn(t *testing.T, tree *Tree, path string) *exec.Cmd {
	t.Helper()
	if err := tree.files.make(path); err != nil {
		t.Fatal(err)
	}
	process := exec.Command("sh", "-c", "read go; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exec sleep 600")
	start, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	for _, folder := range tree.files.folders(path) {
		if _, err := os.Stat(folder); err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(itoa(process.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := start.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	return process
}

// A container that starts again does not shrink its pod's group below the memory in use, which a
// resize was refused for.
func TestGroupIsNotShrunkBelowItsUse(t *testing.T) {
	for _, version := range []string{"v1", "v2"} {
		tree := fake(t, version, Options{})
		p := limitedPod("a")
		parent, err := tree.EnsurePod(p)
		if err != nil {
			t.Fatal(err)
		}
		p.Spec.Containers[0].Resources.Limits[v1.ResourceMemory] = resource.MustParse("32Mi")
		p.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse("32Mi")
		for _, step := range []struct{ used, limit int64 }{{48 << 20, 64 << 20}, {16 << 20, 32 << 20}} {
			used := itoa(int(step.used + 4096))
			for _, folder := range tree.files.folders(parent) {
				if _, err := os.Stat(folder); err != nil {
					continue
				}
				for file, text := range map[string]string{
					"memory.current": used, "memory.usage_in_bytes": used, "memory.stat": "inactive_file 4096\ntotal_inactive_file 4096\n",
					"cpu.stat": "usage_usec 1", "cpuacct.usage": "1", "pids.current": "1",
				} {
					if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := tree.EnsurePod(p); err != nil {
				t.Fatal(err)
			}
			if limit, _, err := tree.files.limits(parent); err != nil || limit != step.limit {
				t.Errorf("%s: with %d in use the limit is %d, want %d (%v)", version, step.used, limit, step.limit, err)
			}
		}
	}
}

// What something else has overwritten in the groups above pods, as systemd does, is restored when
// the next pod starts.
func TestGroupsAbovePodsAreRestored(t *testing.T) {
	for _, driver := range []string{Cgroupfs, Systemd} {
		tree := fake(t, "v2", Options{Driver: driver})
		if err := tree.Enforce(v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("4Gi")}); err != nil {
			t.Fatal(err)
		}
		burst := limitedPod("a")
		delete(burst.Spec.Containers[0].Resources.Limits, v1.ResourceMemory)
		if err := tree.Share([]*v1.Pod{burst}); err != nil {
			t.Fatal(err)
		}
		above := tree.path(tree.kubepods)
		before := settings(t, tree, above)
		for _, group := range []string{above, tree.path(class(tree.kubepods, v1.PodQOSBurstable)), tree.path(class(tree.kubepods, v1.PodQOSBestEffort))} {
			for file, text := range map[string]string{"cpu.weight": "100", "memory.max": "max"} {
				if _, err := read(filepath.Join(tree.Mount, group), file); err != nil {
					continue
				}
				if err := os.WriteFile(filepath.Join(tree.Mount, group, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := tree.Share([]*v1.Pod{burst}); err != nil {
			t.Fatal(err)
		}
		if now := settings(t, tree, above); now != before || !strings.Contains(now, "memory.max=4294967296") || !strings.Contains(now, "cpu.weight=20") {
			t.Errorf("%s: %s before, %s after", driver, before, now)
		}
	}
}
