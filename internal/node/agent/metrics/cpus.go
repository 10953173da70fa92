package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// cpuPinning has the metrics of the CPU and topology managers. Use newCPUPinning.
type cpuPinning struct {
	pinned, pinErrors       prometheus.Counter
	pool, exclusive         prometheus.Gauge
	perNode                 *prometheus.GaugeVec
	aligned, alignmentError prometheus.Counter
	alignment               prometheus.Histogram
}

func newCPUPinning() cpuPinning {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: alpha + help})
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: name, Help: alpha + help}
	}
	return cpuPinning{
		pinned:    counter("kubelet_cpu_manager_pinning_requests_total", "The number of cpu core allocations which required pinning."),
		pinErrors: counter("kubelet_cpu_manager_pinning_errors_total", "The number of cpu core allocations which required pinning failed."),
		pool: prometheus.NewGauge(gauge("kubelet_cpu_manager_shared_pool_size_millicores",
			"The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.")),
		exclusive: prometheus.NewGauge(gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count",
			"The total number of CPUs exclusively allocated to containers running on this node")),
		perNode:        prometheus.NewGaugeVec(gauge("kubelet_cpu_manager_allocation_per_numa", "Number of CPUs allocated per NUMA node"), []string{"numa_node"}),
		aligned:        counter("kubelet_topology_manager_admission_requests_total", "The number of admission requests where resources have to be aligned."),
		alignmentError: counter("kubelet_topology_manager_admission_errors_total", "The number of admission request failures where resources could not be aligned."),
		alignment: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_topology_manager_admission_duration_ms", Buckets: prometheus.ExponentialBuckets(.05, 2, 15),
			Help: alpha + "Duration in milliseconds to serve a pod admission request.",
		}),
	}
}

func (c cpuPinning) all() []prometheus.Collector {
	return []prometheus.Collector{c.pinned, c.pinErrors, c.pool, c.exclusive, c.perNode, c.aligned, c.alignmentError, c.alignment}
}

// Aligned records that a pod's resources were to be assigned, and whether they could be. containers
// are how many were to have CPUs of their own, including the one for which there were none.
func (c cpuPinning) Aligned(took time.Duration, containers int, failed bool) {
	c.aligned.Inc()
	c.alignment.Observe(float64(took.Milliseconds()))
	c.pinned.Add(float64(containers))
	if failed {
		c.alignmentError.Inc()
		if containers > 0 {
			c.pinErrors.Inc()
		}
	}
}

// Assigned records how many CPUs can still be given away, and how many were, by NUMA node.
func (c cpuPinning) Assigned(free int, given map[int]int) {
	c.pool.Set(float64(free * 1000))
	all := 0
	for node, count := range given {
		all += count
		c.perNode.WithLabelValues(strconv.Itoa(node)).Set(float64(count))
	}
	c.exclusive.Set(float64(all))
}
