package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// slowRuntime starts sandboxes in two seconds, and stops none.
type slowRuntime struct{ internalapi.RuntimeService }

func (slowRuntime) RunPodSandbox(_ context.Context, _ *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	time.Sleep(2 * time.Second) // in the bubble's time
	if handler != "" {
		return "", errors.New("no such handler")
	}
	return "s1", nil
}

func (slowRuntime) StopPodSandbox(context.Context, string) error { return errors.New("no") }

// value of a series: of a counter or gauge, or the sum of a histogram.
func value(t *testing.T, g prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var has []string
			for _, label := range m.GetLabel() {
				has = append(has, label.GetName()+"="+label.GetValue())
			}
			if family.GetName() != name || !strings.HasPrefix(strings.Join(has, ","), strings.Join(labels, ",")) {
				continue
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	t.Errorf("there is no %s%v", name, labels)
	return -1
}

func TestKubeletMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		static, over := &v1.Pod{}, &v1.Pod{}
		static.Annotations, over.Status.Phase = map[string]string{annotationSource: "file"}, v1.PodFailed
		k := NewKubelet("node-1", func() []*v1.Pod { return []*v1.Pod{testPod(), static, over} })
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(k)
		runtime := k.Runtime(slowRuntime{})
		if id, err := runtime.RunPodSandbox(t.Context(), nil, ""); id != "s1" || err != nil {
			t.Fatalf("%q, %v", id, err)
		}
		if runtime.StopPodSandbox(t.Context(), "s1") == nil {
			t.Fatal("the runtime's error was lost")
		}
		if _, err := runtime.RunPodSandbox(t.Context(), nil, "kata"); err == nil {
			t.Fatal("the runtime's error was lost")
		}
		k.PodFailedToStart()
		k.ContainerStarted(ContainerType, "")
		k.ContainerStarted(ContainerType, "ErrImagePull")
		k.ContainerStarted(InitContainerType, "")
		k.Evicted("memory.available")
		for _, reason := range []string{"OutOfcpu", "OutOfexample.com/gpu", "OutOfexample.com/fpga", "NodeAffinity"} {
			k.Rejected(reason)
		}
		k.Pulled(4*time.Second, 20<<20)
		k.Pulled(5*time.Second, 101<<30)
		k.Aligned(3*time.Millisecond, 2, false)
		k.Aligned(3*time.Millisecond, 1, true)
		k.Aligned(0, 0, true)
		k.Assigned(5, map[int]int{0: 2, 1: 0})
		k.PluginRegistered("example.com/gpu")
		k.DevicesAllocated("example.com/gpu", 3*time.Second)
		k.Synced(time.Second)
		k.Started(3 * time.Second)
		k.Relisted(time.Second/4, 0)
		k.Relisted(time.Second/4, 2*time.Second)
		for _, c := range []struct {
			name, label string
			want        float64
		}{
			{"kubelet_runtime_operations_total", "operation_type=run_podsandbox", 2},
			{"kubelet_runtime_operations_duration_seconds", "operation_type=run_podsandbox", 4},
			{"kubelet_run_podsandbox_duration_seconds", "runtime_handler=kata", 2},
			{"kubelet_run_podsandbox_errors_total", "runtime_handler=kata", 1},
			{"kubelet_started_pods_errors_total", "", 1},
			{"kubelet_started_containers_total", "container_type=container", 2},
			{"kubelet_started_containers_total", "container_type=init_container", 1},
			{"kubelet_started_containers_errors_total", "code=ErrImagePull,container_type=container", 1},
			{"kubelet_evictions", "eviction_signal=memory.available", 1},
			{"kubelet_admission_rejections_total", "reason=NodeAffinity", 1},
			{"kubelet_admission_rejections_total", "reason=OutOfcpu", 1},
			{"kubelet_admission_rejections_total", "reason=OutOfExtendedResources", 2},
			{"kubelet_image_pull_duration_seconds", "image_size_in_bytes=10MB-100MB", 4},
			{"kubelet_image_pull_duration_seconds", "image_size_in_bytes=GT100GB", 5},
			{"kubelet_cpu_manager_pinning_requests_total", "", 3},
			{"kubelet_cpu_manager_pinning_errors_total", "", 1},
			{"kubelet_cpu_manager_shared_pool_size_millicores", "", 5000},
			{"kubelet_cpu_manager_exclusive_cpu_allocation_count", "", 2},
			{"kubelet_cpu_manager_allocation_per_numa", "numa_node=0", 2},
			{"kubelet_cpu_manager_allocation_per_numa", "numa_node=1", 0},
			{"kubelet_topology_manager_admission_requests_total", "", 3},
			{"kubelet_topology_manager_admission_errors_total", "", 2},
			{"kubelet_topology_manager_admission_duration_ms", "", 6},
			{"kubelet_device_plugin_registration_total", "resource_name=example.com/gpu", 1},
			{"kubelet_device_plugin_alloc_duration_seconds", "resource_name=example.com/gpu", 3},
			{"kubelet_pleg_last_seen_seconds", "", float64(time.Now().Unix())},
			{"kubelet_desired_pods", "static=", 2},
			{"kubelet_desired_pods", "static=true", 1},
			{"kubelet_active_pods", "static=", 1},
			{"kubelet_active_pods", "static=true", 1},
			{"kubelet_runtime_operations_errors_total", "operation_type=stop_podsandbox", 1},
			{"kubelet_pod_worker_duration_seconds", "operation_type=sync", 1},
			{"kubelet_pod_start_duration_seconds", "", 3},
			{"kubelet_started_pods_total", "", 1},
			{"kubelet_pleg_relist_duration_seconds", "", 0.5},
			{"kubelet_pleg_relist_interval_seconds", "", 2},
			{"kubelet_node_name", "node=node-1", 1},
			{"kubelet_running_pods", "", 1},
			{"kubelet_running_containers", "container_state=running", 1},
			{"kubelet_running_containers", "container_state=exited", 1},
		} {
			if got := value(t, registry, c.name, c.label); got != c.want {
				t.Errorf("%s{%s}: %g, want %g", c.name, c.label, got, c.want)
			}
		}
	})
}

func TestCadvisorMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCollector(t)
		gathered := c.Cadvisor(2, 1000)
		app, pod := "container=app", "container="
		for _, s := range []struct {
			name  string
			label string
			want  float64
		}{
			{"machine_cpu_cores", "", 2},
			{"machine_memory_bytes", "", 1000},
			{"container_memory_working_set_bytes", app + ",id=/kubepods/podu1/c1,image=,name=c1,namespace=shop,pod=web", 150},
			{"container_memory_working_set_bytes", pod + ",id=/kubepods/podu1,image=,name=,namespace=shop,pod=web", 200},
			{"container_memory_rss", app, 140},
			{"container_memory_usage_bytes", app, 160},
			{"container_cpu_usage_seconds_total", app, 1},
			{"container_start_time_seconds", app, 1000},
			{"container_spec_memory_limit_bytes", app, 400},
		} {
			if got := value(t, gathered, s.name, s.label); got != s.want {
				t.Errorf("%s{%s}: %g, want %g", s.name, s.label, got, s.want)
			}
		}
	})
}
