package metrics

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/node/agent/cgroups"
	"github.com/berth-k8s/berth/internal/node/agent/pressure"
	"github.com/berth-k8s/berth/internal/node/agent/volumes/sizes"
)

// fakeTree uses 0.25 CPUs in each group, and has 1000 bytes of memory.
type fakeTree struct{ began time.Time }

func (f fakeTree) usage(memory int64) (cgroups.Usage, error) {
	now := time.Now()
	return cgroups.Usage{Time: now, CPU: time.Second + now.Sub(f.began)/4, Memory: memory + 10, WorkingSet: memory, RSS: memory - 10, Tasks: 3}, nil
}

func (f fakeTree) Machine() (memory, tasks cgroups.Level, err error) {
	return cgroups.Level{Capacity: 1000, Used: 600}, cgroups.Level{Capacity: 100, Used: 40}, nil
}
func (f fakeTree) NodeUsage() (cgroups.Usage, error)      { return f.usage(600) }
func (f fakeTree) AllPods() (cgroups.Usage, int64, error) { u, err := f.usage(500); return u, 800, err }
func (f fakeTree) PodGroup(pod *v1.Pod) string            { return "/kubepods/pod" + string(pod.UID) }
func (f fakeTree) PodUsage(uid types.UID) (cgroups.Usage, error) {
	if uid == "not-started" {
		return cgroups.Usage{}, os.ErrNotExist
	}
	return f.usage(200)
}
func (f fakeTree) ContainerUsage(_ types.UID, id string) (cgroups.Usage, error) {
	if id != "c1" && id != "c2" { // of a container that has ended, something may still be there
		return cgroups.Usage{}, fmt.Errorf("no container %q", id)
	}
	return f.usage(150)
}

type fakeRuntime struct {
	dir  string
	goes *int // how often a container goes while all are listed
}

func (f fakeRuntime) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	if f.goes != nil && *f.goes > 0 {
		*f.goes--
		return nil, status.Error(codes.NotFound, "failed to obtain cpu stats: container: not found")
	}
	return []*runtimeapi.ContainerStats{{Attributes: &runtimeapi.ContainerAttributes{Id: "c1"},
		WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: 5000}, InodesUsed: &runtimeapi.UInt64Value{Value: 5}}}}, nil
}

func (f fakeRuntime) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: f.dir}, UsedBytes: &runtimeapi.UInt64Value{Value: 7000}}}}, nil
}

func testPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"},
		Spec: v1.PodSpec{
			Overhead:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m"), v1.ResourceMemory: resource.MustParse("120Mi")},
			Containers: []v1.Container{{Name: "app", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("400")}}}, {Name: "done"}},
		},
		Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{
			{Name: "app", ContainerID: "containerd://c1", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Unix(1000, 0)}}},
			{Name: "done", ContainerID: "containerd://c2", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}},
		}},
	}
}

func testCollector(t *testing.T) *Collector {
	t.Helper()
	dir := t.TempDir()
	logs := filepath.Join(dir, "shop_web_u1", "app")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(logs, "0.log"), make([]byte, 64<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	return New(t.Context(), Options{
		Node: "node-1", Tree: fakeTree{time.Now()}, Runtime: fakeRuntime{dir: dir}, RootDir: dir, LogDir: dir,
		Pods: func() []*v1.Pod {
			return []*v1.Pod{testPod(), {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "waiting", UID: "not-started"}}}
		},
		Volumes: func(context.Context, *v1.Pod) ([]sizes.Usage, error) {
			return []sizes.Usage{{Volume: "scratch", Used: 30000, Inodes: 3}, {Volume: "memory", Used: 100000, Inodes: 1, InMemory: true}}, nil
		},
	})
}

func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCollector(t)
		first, err := c.Summary(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if len(first.Pods) != 1 || first.Pods[0].PodRef.Name != "web" {
			t.Fatalf("pods %+v, want only the one that has a cgroup", first.Pods)
		}
		if first.Pods[0].CPU.UsageNanoCores != nil {
			t.Error("a rate after one sample")
		}
		time.Sleep(10 * time.Second)
		summary, err := c.Summary(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		pod := summary.Pods[0]
		if len(pod.Containers) != 1 {
			t.Fatalf("containers %+v, want the one that runs", pod.Containers)
		}
		app := pod.Containers[0]
		for what, got := range map[string]uint64{
			"pod's cores":            *pod.CPU.UsageNanoCores - 250_000_000,
			"container's cores":      *app.CPU.UsageNanoCores - 250_000_000,
			"node's cores":           *summary.Node.CPU.UsageNanoCores - 250_000_000,
			"pod's CPU time":         *pod.CPU.UsageCoreNanoSeconds - 3_500_000_000,
			"pod's working set":      *pod.Memory.WorkingSetBytes - 200,
			"pod's tasks":            *pod.ProcessStats.ProcessCount - 3,
			"container available":    *app.Memory.AvailableBytes - 250,
			"container's layer":      *app.Rootfs.UsedBytes - 5000,
			"container's inodes":     *app.Rootfs.InodesUsed - 5,
			"node's available":       *summary.Node.Memory.AvailableBytes - 400,
			"all pods' available":    *summary.Node.SystemContainers[0].Memory.AvailableBytes - 300,
			"images":                 *summary.Node.Runtime.ImageFs.UsedBytes - 7000,
			"volume":                 *pod.VolumeStats[0].UsedBytes - 30000,
			"disk in all":            *pod.EphemeralStorage.UsedBytes - *app.Logs.UsedBytes - 5000 - 30000,
			"tasks of the node":      uint64(*summary.Node.Rlimit.NumOfRunningProcesses - 40),
			"tasks that it may have": uint64(*summary.Node.Rlimit.MaxPID - 100),
		} {
			if got != 0 {
				t.Errorf("%s: off by %d", what, int64(got))
			}
		}
		if *app.Logs.UsedBytes < 64<<10 {
			t.Errorf("logs take %d bytes, want at least 64Ki", *app.Logs.UsedBytes)
		}
		short, err := c.Summary(t.Context(), true)
		if err != nil || short.Node.Fs != nil || short.Pods[0].EphemeralStorage != nil || short.Pods[0].Memory == nil {
			t.Errorf("CPU and memory alone: %+v, %v", short.Node, err)
		}
	})
}

func TestResourceMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCollector(t)
		at := time.Now().UnixMilli()
		want := strings.NewReplacer("AT", fmt.Sprint(at)).Replace(`
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="app",namespace="shop",pod="web"} 1 AT
# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="app",namespace="shop",pod="web"} 150 AT
# HELP container_start_time_seconds [STABLE] Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="app",namespace="shop",pod="web"} 1000
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 1 AT
# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 600 AT
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="shop",pod="web"} 1 AT
# HELP pod_memory_working_set_bytes [STABLE] Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="shop",pod="web"} 200 AT
# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
`)
		compare(t, c.Resource(), want)
	})
}

// A pod has taken the name of one that was deleted by force and still runs: its metrics are the
// ones of this name.
func TestResourceMetricsOfANameThatWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCollector(t)
		old, taker := testPod(), testPod()
		old.UID, old.CreationTimestamp = "u0", metav1.Unix(500, 0)
		taker.CreationTimestamp = metav1.Unix(900, 0)
		old.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.Unix(600, 0)
		for _, pods := range [][]*v1.Pod{{old, taker}, {taker, old}} {
			c.Pods = func() []*v1.Pod { return pods }
			if got := value(t, c.Resource(), "container_start_time_seconds", "container=app", "namespace=shop", "pod=web"); got != 1000 {
				t.Errorf("started at %g, want that of the pod that has the name, 1000", got)
			}
		}
	})
}

// As kube-state-metrics has them: a pod without overhead has no such metric.
func TestOverheadMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Overhead(func() []*v1.Pod {
		return []*v1.Pod{testPod(), {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "plain", UID: "u2"}}}
	}))
	want := `
# HELP kube_pod_overhead_cpu_cores The pod overhead in regards to cpu cores associated with running a pod.
# TYPE kube_pod_overhead_cpu_cores gauge
kube_pod_overhead_cpu_cores{namespace="shop",pod="web",uid="u1"} 0.25
# HELP kube_pod_overhead_memory_bytes The pod overhead in regards to memory associated with running a pod.
# TYPE kube_pod_overhead_memory_bytes gauge
kube_pod_overhead_memory_bytes{namespace="shop",pod="web",uid="u1"} 1.2582912e+08
`
	compare(t, registry, want)
}

func TestLevels(t *testing.T) {
	c := testCollector(t)
	levels, err := c.Levels(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for signal, want := range map[pressure.Signal]pressure.Level{
		pressure.Memory: {Available: 400, Capacity: 1000}, pressure.AllocatableMemory: {Available: 300, Capacity: 800}, pressure.PIDs: {Available: 60, Capacity: 100},
	} {
		if levels.Signals[signal] != want {
			t.Errorf("%s: %+v, want %+v", signal, levels.Signals[signal], want)
		}
	}
	for _, signal := range []pressure.Signal{pressure.NodeFs, pressure.ImageFs} {
		if level := levels.Signals[signal]; level.Available <= 0 || level.Capacity < level.Available {
			t.Errorf("%s: %+v", signal, level)
		}
	}
	if levels.ImagesApart {
		t.Error("one folder is taken for two filesystems")
	}
	c.mounts, c.Runtime = mounts{"/proc", "/proc"}, nil // another filesystem, for which the runtime need not be asked again
	if levels, err = c.Levels(t.Context()); err != nil || !levels.ImagesApart || levels.LayersWithNode {
		t.Errorf("two filesystems are taken for one: %+v, %v", levels, err)
	}
	c.mounts.layers = c.RootDir
	if levels, err = c.Levels(t.Context()); err != nil || !levels.ImagesApart || !levels.LayersWithNode {
		t.Errorf("images and layers are taken for one: %+v, %v", levels, err)
	}
}

// hung is a runtime that answers nothing.
type hung struct{ fakeRuntime }

func (hung) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Memory is read while the runtime hangs that was to say where its images are.
func TestLevelsDoNotWaitForTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCollector(t)
		c.Runtime = hung{}
		began := time.Now()
		levels, err := c.Levels(t.Context())
		if took := time.Since(began); err != nil || took >= time.Second || levels.Signals[pressure.Memory].Available != 400 {
			t.Errorf("after %s: %+v, %v", took, levels, err)
		}
	})
}

func compare(t *testing.T, gatherer prometheus.Gatherer, want string) {
	t.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&got, family); err != nil {
			t.Fatal(err)
		}
	}
	if got.String() != strings.TrimLeft(want, "\n") {
		t.Errorf("metrics:\n%s\nwant:\n%s", got.String(), want)
	}
}

// TestAContainerThatGoesMeanwhile: a summary does not fail because the runtime answered for no
// container when one of them had just gone; for ever it is not asked.
func TestAContainerThatGoesMeanwhile(t *testing.T) {
	goes := listings - 1
	c := &Collector{Options: Options{Runtime: fakeRuntime{goes: &goes}}}
	if layers, err := c.writableLayers(t.Context()); err != nil || len(layers) != 1 {
		t.Errorf("%d containers, %v", len(layers), err)
	}
	goes = 1000
	if _, err := c.writableLayers(t.Context()); status.Code(err) != codes.NotFound || goes != 1000-listings {
		t.Errorf("%v, asked %d times", err, 1000-goes)
	}
}
