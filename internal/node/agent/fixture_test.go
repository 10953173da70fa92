package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/node/agent/cgroups"
	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/metrics"
	"github.com/berth-k8s/berth/internal/node/agent/pressure"
)

// node is an agent with its parts, on a fake API, a runtime in memory, and cgroups that are plain
// files.
type node struct {
	*Agent
	api     *fake.Clientset
	runtime *memoryRuntime
	images  *memoryImages
	events  chan eventlog.Event
	mount   string
}

// still is a machine that never runs short of anything.
type still struct{}

func (still) Levels(context.Context) (pressure.Levels, error) { return pressure.Levels{}, nil }
func (still) Summary(context.Context, bool) (*stats.Summary, error) {
	return &stats.Summary{}, nil
}

func newNode(t *testing.T, objects ...runtime.Object) (*node, context.Context) {
	t.Helper()
	n := &node{
		api: fake.NewClientset(objects...), runtime: newMemoryRuntime(), images: &memoryImages{}, mount: plainCgroups(t),
		events: make(chan eventlog.Event, 1000),
	}
	config := DefaultConfig()
	config.NodeName, config.NodeIPs = "node-1", []net.IP{net.IPv4(192, 0, 2, 1)}
	config.RootDir, config.PodLogDir = t.TempDir(), t.TempDir()
	a := &Agent{
		config: config, client: n.api, pods: newPods(), nodeChanged: make(chan struct{}, 1), starts: make(gate, 4),
		machine: machine{hostname: config.NodeName, cpus: 2, memory: 4 << 30},
		runtime: &cri.Runtime{Runtime: n.runtime, Images: n.images, Name: "memory", Node: config.NodeName}, tell: func(e eventlog.Event) { n.events <- e },
		hostAddresses: []string{"192.0.2.1"},
	}
	n.Agent = a
	a.mirrors = newMirrors(n.api, a.Node)
	a.statuses = newStatuses(n.api, a.target)
	a.kubelet = metrics.NewKubelet(config.NodeName, a.Pods)
	a.runtime.Runtime = a.kubelet.Runtime(n.runtime)
	a.object.node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: config.NodeName}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("4Gi"), v1.ResourcePods: resource.MustParse("110"),
	}}}
	ctx, cancel := context.WithCancel(context.Background())
	if err := a.openVolumes(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.openImages(ctx); err != nil {
		t.Fatal(err)
	}
	a.openDevices()
	tree, err := cgroups.Open(cgroups.Options{Mount: n.mount})
	if err != nil {
		t.Fatal(err)
	}
	a.cgroups = &groups{tree: tree, memory: 4 << 30}
	if a.watcher, err = pressure.New(pressure.Config{}, pressure.Node{Stats: still{}}); err != nil {
		t.Fatal(err)
	}
	services := informers.NewSharedInformerFactory(n.api, 0).Core().V1().Services()
	a.services, a.servicesKnown = services.Lister(), func() bool { return true }
	a.wire(ctx)
	written := make(chan struct{})
	go func() { a.statuses.run(ctx); close(written) }()
	t.Cleanup(func() { cancel(); a.pods.running.Wait(); <-written })
	return n, ctx
}

// plainCgroups is a folder that looks like cgroup v2's.
func plainCgroups(t *testing.T) string {
	mount := t.TempDir()
	for file, text := range map[string]string{"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.subtree_control": ""} {
		if err := os.WriteFile(filepath.Join(mount, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return mount
}

// dropGroup removes a pod's cgroup, if it has one: the kernel's files go with a group, these are
// plain ones.
func (n *node) dropGroup(t *testing.T, uid types.UID) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(n.mount, "kubepods", "besteffort", "pod"+string(uid))); err != nil {
		t.Fatal(err)
	}
}

// boundPod is one that runs a container, without a token of its service account, which would have
// to be asked for.
func boundPod(name string) *v1.Pod {
	grace, enabled := int64(1), false
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec: v1.PodSpec{
			NodeName: "node-1", RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, EnableServiceLinks: &enabled,
			Containers: []v1.Container{{Name: "c", Image: "example.com/c:1", ImagePullPolicy: v1.PullIfNotPresent}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
}

// allEvents that were told until now.
func allEvents(n *node) string {
	var out strings.Builder
	for {
		select {
		case e := <-n.events:
			fmt.Fprintln(&out, e.Type, e.Reason, e.Message)
		default:
			return out.String()
		}
	}
}
