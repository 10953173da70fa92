package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

var (
	ofContainer = []string{"container", "pod", "namespace"}
	ofPod       = []string{"pod", "namespace"}

	nodeCPU         = describe("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", nil)
	nodeMemory      = describe("node_memory_working_set_bytes", "Current working set of the node in bytes", nil)
	containerCPU    = describe("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", ofContainer)
	containerMemory = describe("container_memory_working_set_bytes", "Current working set of the container in bytes", ofContainer)
	containerStart  = describe("container_start_time_seconds", "Start time of the container since unix epoch in seconds", ofContainer)
	podCPU          = describe("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", ofPod)
	podMemory       = describe("pod_memory_working_set_bytes", "Current working set of the pod in bytes", ofPod)
	scrapeError     = describe("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil)
)

// describe returns a metric with the kubelet's name and text; all of these are stable there.
func describe(name, help string, labels []string) *prometheus.Desc {
	return prometheus.NewDesc(name, "[STABLE] "+help, labels, nil)
}

// Resource gathers the kubelet's /metrics/resource: CPU and memory of the node, its pods and their
// containers.
func (c *Collector) Resource() prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(resources{c})
	return registry
}

type resources struct{ *Collector }

func (r resources) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{nodeCPU, nodeMemory, containerCPU, containerMemory, containerStart, podCPU, podMemory, scrapeError} {
		descs <- desc
	}
}

func (r resources) Collect(out chan<- prometheus.Metric) {
	summary, err := r.Summary(context.Background(), true)
	if err != nil {
		klog.ErrorS(err, "Cannot measure the node for /metrics/resource")
		out <- prometheus.MustNewConstMetric(scrapeError, prometheus.GaugeValue, 1)
		return
	}
	out <- prometheus.MustNewConstMetric(scrapeError, prometheus.GaugeValue, 0)
	send(out, nodeCPU, nodeMemory, summary.Node.CPU, summary.Node.Memory)
	for _, pod := range named(summary.Pods) {
		send(out, podCPU, podMemory, pod.CPU, pod.Memory, pod.PodRef.Name, pod.PodRef.Namespace)
		for _, container := range pod.Containers {
			labels := []string{container.Name, pod.PodRef.Name, pod.PodRef.Namespace}
			send(out, containerCPU, containerMemory, container.CPU, container.Memory, labels...)
			if started := container.StartTime; started.Unix() > 0 {
				out <- prometheus.MustNewConstMetric(containerStart, prometheus.GaugeValue, float64(started.UnixNano())/float64(time.Second), labels...)
			}
		}
	}
}

// named returns the pods by their names: of two, the one that has taken the other's. The labels do
// not tell them apart, and no two series may have the same.
func named(pods []stats.PodStats) map[types.NamespacedName]stats.PodStats {
	out := map[types.NamespacedName]stats.PodStats{}
	for _, pod := range pods {
		name := types.NamespacedName{Namespace: pod.PodRef.Namespace, Name: pod.PodRef.Name}
		if other, taken := out[name]; !taken || other.StartTime.Before(&pod.StartTime) {
			out[name] = pod
		}
	}
	return out
}

// send emits values with the time at which they were measured, which rates are computed from.
func send(out chan<- prometheus.Metric, cpuDesc, memoryDesc *prometheus.Desc, cpu *stats.CPUStats, memory *stats.MemoryStats, labels ...string) {
	seconds := float64(*cpu.UsageCoreNanoSeconds) / float64(time.Second)
	out <- prometheus.NewMetricWithTimestamp(cpu.Time.Time, prometheus.MustNewConstMetric(cpuDesc, prometheus.CounterValue, seconds, labels...))
	out <- prometheus.NewMetricWithTimestamp(memory.Time.Time, prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, float64(*memory.WorkingSetBytes), labels...))
}
