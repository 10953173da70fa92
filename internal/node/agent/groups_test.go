package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-k8s/berth/internal/node/agent/cgroups"
)

// With cgroup v2 a container that runs out of memory is killed as a whole, as by the kubelet;
// version 1 has no such setting.
func TestContainerIsKilledAsAWhole(t *testing.T) {
	first := t.TempDir()
	for _, controller := range []string{"cpu", "memory"} {
		if err := os.MkdirAll(filepath.Join(first, controller), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(first, controller, "cgroup.procs"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pod := boundPod("p")
	for mount, want := range map[string]string{first: "", plainCgroups(t): "1"} {
		tree, err := cgroups.Open(cgroups.Options{Mount: mount})
		if err != nil {
			t.Fatal(err)
		}
		g := &groups{tree: tree, memory: 4 << 30}
		overhead, whole := g.sandbox(pod)
		for what, got := range map[string]map[string]string{
			"container": g.container(pod, &pod.Spec.Containers[0]).Unified, "sandbox": whole.Unified, "overhead": overhead.Unified,
		} {
			if got["memory.oom.group"] != want {
				t.Errorf("%s of %s: %v, want %q", what, mount, got, want)
			}
		}
	}
}
