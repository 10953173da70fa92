package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What is reserved of memory and processes is kept from all pods together. Processes are no
// resource of the node.
func TestReservationsAreKeptFromPods(t *testing.T) {
	n, _ := newNode(t)
	n.Agent.config.KubeReserved = v1.ResourceList{"pid": resource.MustParse("500"), v1.ResourceMemory: resource.MustParse("1Gi")}
	n.Agent.config.SystemReserved = v1.ResourceList{"pid": resource.MustParse("1k")}
	memory, tasks, err := n.cgroups.tree.Capacity()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.enforceReservations(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]int64{"pids.max": tasks - 1500, "memory.max": min(memory, 4<<30) - 1<<30} {
		if text, err := os.ReadFile(filepath.Join(n.mount, "kubepods", file)); err != nil || strings.TrimSpace(string(text)) != strconv.FormatInt(want, 10) {
			t.Errorf("%s is %q, want %d (%v)", file, text, want, err)
		}
	}
	if _, shown := n.capacity()["pid"]; shown {
		t.Error("processes are a resource of the node")
	}
	for _, name := range []v1.ResourceName{"pid", v1.ResourceMemory} {
		n.Agent.config.SystemReserved = v1.ResourceList{name: resource.MustParse("1Ti")}
		if err := n.enforceReservations(); err == nil || !strings.Contains(err.Error(), string(name)+"=") || !strings.Contains(err.Error(), "leaves nothing for pods") {
			t.Errorf("more %s is reserved than there is: %v", name, err)
		}
	}
}
