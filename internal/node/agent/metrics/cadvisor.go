package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-k8s/berth/internal/node/agent/cgroups"
)

// ofCadvisor are the labels of cAdvisor's metrics of containers. A pod's own group has neither
// container nor image.
var ofCadvisor = []string{"container", "id", "image", "name", "namespace", "pod"}

func cadvisor(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append(more, ofCadvisor...), nil)
}

var (
	cadvisorCPU        = cadvisor("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", "cpu")
	cadvisorMemory     = cadvisor("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed")
	cadvisorWorkingSet = cadvisor("container_memory_working_set_bytes", "Current working set in bytes.")
	cadvisorRSS        = cadvisor("container_memory_rss", "Size of RSS in bytes.")
	cadvisorFaults     = cadvisor("container_memory_failures_total", "Cumulative count of memory allocation failures.", "failure_type", "scope")
	cadvisorStart      = cadvisor("container_start_time_seconds", "Start time of the container since unix epoch in seconds.")
	cadvisorLimit      = cadvisor("container_spec_memory_limit_bytes", "Memory limit for the container.")
	cadvisorShares     = cadvisor("container_spec_cpu_shares", "CPU share of the container.")
	cadvisorQuota      = cadvisor("container_spec_cpu_quota", "CPU quota of the container.")
	cadvisorPeriod     = cadvisor("container_spec_cpu_period", "CPU period of the container.")
	machineCPUs        = prometheus.NewDesc("machine_cpu_cores", "Number of logical CPU cores.", nil, nil)
	machineMemory      = prometheus.NewDesc("machine_memory_bytes", "Amount of memory installed on the machine.", nil, nil)
)

// Cadvisor gathers /metrics/cadvisor. Of cAdvisor's metrics it has the CPU and memory of pods and
// containers, and their limits.
func (c *Collector) Cadvisor(cpus int, memory int64) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(containers{c, cpus, memory})
	return registry
}

type containers struct {
	*Collector
	cpus   int
	memory int64
}

func (c containers) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{cadvisorCPU, cadvisorMemory, cadvisorWorkingSet, cadvisorRSS, cadvisorFaults, cadvisorStart,
		cadvisorLimit, cadvisorShares, cadvisorQuota, cadvisorPeriod, machineCPUs, machineMemory} {
		descs <- desc
	}
}

func (c containers) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(machineCPUs, prometheus.GaugeValue, float64(c.cpus))
	out <- prometheus.MustNewConstMetric(machineMemory, prometheus.GaugeValue, float64(c.memory))
	summary, err := c.Summary(context.Background(), true)
	if err != nil {
		klog.ErrorS(err, "Cannot measure the node for /metrics/cadvisor")
		return
	}
	pods := map[string]*v1.Pod{}
	for _, pod := range c.Pods() {
		pods[string(pod.UID)] = pod
	}
	for i := range summary.Pods {
		measured := &summary.Pods[i]
		pod := pods[measured.PodRef.UID]
		if pod == nil {
			continue // it was added in between
		}
		group := c.Tree.PodGroup(pod)
		one := series{out, []string{"", group, "", "", pod.Namespace, pod.Name}}
		one.usage(measured.CPU, measured.Memory)
		one.sizes(cgroups.ForPod(pod))
		for j := range measured.Containers {
			c.container(out, pod, group, &measured.Containers[j])
		}
	}
}

func (c containers) container(out chan<- prometheus.Metric, pod *v1.Pod, group string, measured *stats.ContainerStats) {
	id, image := runs(pod, measured.Name)
	one := series{out, []string{measured.Name, group + "/" + id, image, id, pod.Namespace, pod.Name}}
	one.usage(measured.CPU, measured.Memory)
	if started := measured.StartTime; started.Unix() > 0 {
		one.gauge(cadvisorStart, float64(started.UnixNano())/float64(time.Second))
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == measured.Name {
				one.sizes(cgroups.ForContainer(pod, &list[i]))
			}
		}
	}
}

// runs returns the ID and the image of a container.
func runs(pod *v1.Pod, name string) (id, image string) {
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return containerID(list[i].ContainerID), list[i].Image
			}
		}
	}
	return "", ""
}

// series are the metrics of one pod or container.
type series struct {
	out    chan<- prometheus.Metric
	labels []string
}

func (s series) gauge(desc *prometheus.Desc, value float64) {
	s.out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, s.labels...)
}

func (s series) usage(cpu *stats.CPUStats, memory *stats.MemoryStats) {
	at := func(when time.Time, desc *prometheus.Desc, kind prometheus.ValueType, value float64, more ...string) {
		s.out <- prometheus.NewMetricWithTimestamp(when, prometheus.MustNewConstMetric(desc, kind, value, append(more, s.labels...)...))
	}
	at(cpu.Time.Time, cadvisorCPU, prometheus.CounterValue, float64(*cpu.UsageCoreNanoSeconds)/float64(time.Second), "total")
	then := memory.Time.Time
	at(then, cadvisorMemory, prometheus.GaugeValue, float64(*memory.UsageBytes))
	at(then, cadvisorWorkingSet, prometheus.GaugeValue, float64(*memory.WorkingSetBytes))
	at(then, cadvisorRSS, prometheus.GaugeValue, float64(*memory.RSSBytes))
	at(then, cadvisorFaults, prometheus.CounterValue, float64(*memory.PageFaults), "pgfault", "hierarchy")
	at(then, cadvisorFaults, prometheus.CounterValue, float64(*memory.MajorPageFaults), "pgmajfault", "hierarchy")
}

// sizes reports limits. Without a CPU quota there is no series for it; without a memory limit, its
// series is 0.
func (s series) sizes(sizes cgroups.Sizes) {
	s.gauge(cadvisorLimit, float64(sizes.Memory))
	s.gauge(cadvisorShares, float64(sizes.Shares))
	s.gauge(cadvisorPeriod, float64(sizes.Period))
	if sizes.Quota > 0 {
		s.gauge(cadvisorQuota, float64(sizes.Quota))
	}
}
