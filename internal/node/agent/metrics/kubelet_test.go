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

func (slowRuntime) RunPodSandbox(context.Context, *runtimeapi.PodSandboxConfig, string) (string, error) {
	time.Sleep(2 * time.Second) // in the bubble's time
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
		k := NewKubelet("node-1", func() []*v1.Pod { return []*v1.Pod{testPod(), {}} })
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(k)
		runtime := k.Runtime(slowRuntime{})
		if id, err := runtime.RunPodSandbox(t.Context(), nil, ""); id != "s1" || err != nil {
			t.Fatalf("%q, %v", id, err)
		}
		if runtime.StopPodSandbox(t.Context(), "s1") == nil {
			t.Fatal("the runtime's error was lost")
		}
		k.Synced(time.Second)
		k.Started(3 * time.Second)
		k.Relisted(time.Second/4, 0)
		k.Relisted(time.Second/4, 2*time.Second)
		for _, c := range []struct {
			name, label string
			want        float64
		}{
			{"kubelet_runtime_operations_total", "operation_type=run_podsandbox", 1},
			{"kubelet_runtime_operations_duration_seconds", "operation_type=run_podsandbox", 2},
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
