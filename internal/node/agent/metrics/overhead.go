package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// Names, labels and texts are those of kube-state-metrics.
var (
	identity       = []string{"namespace", "pod", "uid"}
	overheadCPU    = prometheus.NewDesc("kube_pod_overhead_cpu_cores", "The pod overhead in regards to cpu cores associated with running a pod.", identity, nil)
	overheadMemory = prometheus.NewDesc("kube_pod_overhead_memory_bytes", "The pod overhead in regards to memory associated with running a pod.", identity, nil)
)

// Overhead collects the overhead of those pods of a list that have one. The agent's list is the
// pods of its node.
func Overhead(pods func() []*v1.Pod) prometheus.Collector { return overhead(pods) }

type overhead func() []*v1.Pod

func (o overhead) Describe(descs chan<- *prometheus.Desc) {
	descs <- overheadCPU
	descs <- overheadMemory
}

func (o overhead) Collect(out chan<- prometheus.Metric) {
	for _, pod := range o() {
		labels := []string{pod.Namespace, pod.Name, string(pod.UID)}
		if cpu, found := pod.Spec.Overhead[v1.ResourceCPU]; found {
			out <- prometheus.MustNewConstMetric(overheadCPU, prometheus.GaugeValue, float64(cpu.MilliValue())/1000, labels...)
		}
		if memory, found := pod.Spec.Overhead[v1.ResourceMemory]; found {
			out <- prometheus.MustNewConstMetric(overheadMemory, prometheus.GaugeValue, memory.AsApproximateFloat64(), labels...)
		}
	}
}
