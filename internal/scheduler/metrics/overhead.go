// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// The names, labels and texts are the same as in kube-state-metrics.
var (
	ofPod       = []string{"namespace", "pod", "uid"}
	overheadCPU = prometheus.NewDesc("kube_pod_overhead_cpu_cores",
		"The pod overhead in regards to cpu cores associated with running a pod.", ofPod, nil)
	overheadMemory = prometheus.NewDesc("kube_pod_overhead_memory_bytes",
		"The pod overhead in regards to memory associated with running a pod.", ofPod, nil)
)

// overheads records the pods with overhead, and passes all objects on.
type overheads struct {
	cycle.Objects
	mu   sync.Mutex
	pods map[types.UID]overhead // only pods with overhead
}

// overhead is the overhead of one pod, with the labels of its series.
type overhead struct {
	labels   []string
	podFixed v1.ResourceList
}

// Overheads adds the overhead of all pods to the metrics. The caller must use the result instead of
// objects; it passes all calls on to objects. It keeps only pods with overhead.
func (r *Recorder) Overheads(objects cycle.Objects) cycle.Objects {
	o := &overheads{Objects: objects, pods: map[types.UID]overhead{}}
	r.registry.RawMustRegister(o)
	return o
}

// Pod implements cycle.Objects.
func (o *overheads) Pod(pod *v1.Pod) {
	if len(pod.Spec.Overhead) > 0 {
		o.mu.Lock()
		o.pods[pod.UID] = overhead{[]string{pod.Namespace, pod.Name, string(pod.UID)}, pod.Spec.Overhead}
		o.mu.Unlock()
	}
	o.Objects.Pod(pod)
}

// PodGone implements cycle.Objects.
func (o *overheads) PodGone(uid types.UID) {
	o.mu.Lock()
	delete(o.pods, uid)
	o.mu.Unlock()
	o.Objects.PodGone(uid)
}

// Describe implements prometheus.Collector.
func (o *overheads) Describe(descs chan<- *prometheus.Desc) {
	descs <- overheadCPU
	descs <- overheadMemory
}

// Collect implements prometheus.Collector.
func (o *overheads) Collect(out chan<- prometheus.Metric) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pod := range o.pods {
		if cpu, found := pod.podFixed[v1.ResourceCPU]; found {
			out <- prometheus.MustNewConstMetric(overheadCPU, prometheus.GaugeValue, float64(cpu.MilliValue())/1000, pod.labels...)
		}
		if memory, found := pod.podFixed[v1.ResourceMemory]; found {
			out <- prometheus.MustNewConstMetric(overheadMemory, prometheus.GaugeValue, memory.AsApproximateFloat64(), pod.labels...)
		}
	}
}
