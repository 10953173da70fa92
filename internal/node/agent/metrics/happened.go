package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// happened counts what the node has done with pods, containers and images. Use newHappened.
type happened struct {
	containers, containerErrors *prometheus.CounterVec
	podErrors                   prometheus.Counter
	sandbox                     *prometheus.HistogramVec
	sandboxErrors               *prometheus.CounterVec
	evictions, rejections       *prometheus.CounterVec
	pulls                       *prometheus.HistogramVec
	registrations               *prometheus.CounterVec
	allocations                 *prometheus.HistogramVec
}

func newHappened() happened {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: alpha + help}, labels)
	}
	histogram := func(name, help, label string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: alpha + help, Buckets: buckets}, []string{label})
	}
	return happened{
		containers:      counter("kubelet_started_containers_total", "Cumulative number of containers started", "container_type"),
		containerErrors: counter("kubelet_started_containers_errors_total", "Cumulative number of errors when starting containers", "container_type", "code"),
		podErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_errors_total", Help: alpha + "Cumulative number of errors when starting pods",
		}),
		sandbox: histogram("kubelet_run_podsandbox_duration_seconds",
			"Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.", "runtime_handler", prometheus.DefBuckets),
		sandboxErrors: counter("kubelet_run_podsandbox_errors_total", "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", "runtime_handler"),
		evictions:     counter("kubelet_evictions", "Cumulative number of pod evictions by eviction signal", "eviction_signal"),
		rejections:    counter("kubelet_admission_rejections_total", "Cumulative number pod admission rejections by the Kubelet.", "reason"),
		pulls: histogram("kubelet_image_pull_duration_seconds", "Duration in seconds to pull an image.", "image_size_in_bytes",
			[]float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}),
		registrations: counter("kubelet_device_plugin_registration_total",
			"Cumulative number of device plugin registrations. Broken down by resource name.", "resource_name"),
		allocations: histogram("kubelet_device_plugin_alloc_duration_seconds",
			"Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.", "resource_name", prometheus.DefBuckets),
	}
}

func (h happened) all() []prometheus.Collector {
	return []prometheus.Collector{h.containers, h.containerErrors, h.podErrors, h.sandbox, h.sandboxErrors, h.evictions, h.rejections, h.pulls, h.registrations, h.allocations}
}

// Types of containers, by upstream's names.
const (
	ContainerType          = "container"
	InitContainerType      = "init_container"
	EphemeralContainerType = "ephemeral_container"
)

// ContainerStarted records the start of a container, and code, why it failed; empty: it did not.
func (h happened) ContainerStarted(kind, code string) {
	h.containers.WithLabelValues(kind).Inc()
	if code != "" {
		h.containerErrors.WithLabelValues(kind, code).Inc()
	}
}

// PodFailedToStart records that a pod's sandbox could not be created.
func (h happened) PodFailedToStart() { h.podErrors.Inc() }

// Evicted records the eviction of a pod by the signal that led to it.
func (h happened) Evicted(signal string) { h.evictions.WithLabelValues(signal).Inc() }

// Rejected records that a pod was not admitted. As upstream, it counts reasons that anybody can
// invent, by requesting a resource, together.
func (h happened) Rejected(reason string) {
	switch reason {
	case "OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods":
	default:
		if strings.HasPrefix(reason, "OutOf") {
			reason = "OutOfExtendedResources"
		}
	}
	h.rejections.WithLabelValues(reason).Inc()
}

// Pulled records that an image of this size was pulled.
func (h happened) Pulled(took time.Duration, size uint64) {
	h.pulls.WithLabelValues(imageSize(size)).Observe(took.Seconds())
}

// PluginRegistered records that a device plugin asked to serve a resource.
func (h happened) PluginRegistered(resource string) { h.registrations.WithLabelValues(resource).Inc() }

// DevicesAllocated records how long a device plugin took to give a container devices, or to refuse.
func (h happened) DevicesAllocated(resource string, took time.Duration) {
	h.allocations.WithLabelValues(resource).Observe(took.Seconds())
}

// imageSize is upstream's label for images of about this size; empty: the size is unknown.
func imageSize(bytes uint64) string {
	const mb, gb = 1 << 20, 1 << 30
	for _, class := range []struct {
		above uint64
		label string
	}{
		{100 * gb, "GT100GB"}, {60 * gb, "60GB-100GB"}, {40 * gb, "40GB-60GB"}, {30 * gb, "30GB-40GB"}, {20 * gb, "20GB-30GB"}, {10 * gb, "10GB-20GB"},
		{5 * gb, "5GB-10GB"}, {gb, "1GB-5GB"}, {500 * mb, "500MB-1GB"}, {100 * mb, "100MB-500MB"}, {10 * mb, "10MB-100MB"}, {0, "0-10MB"},
	} {
		if bytes > class.above {
			return class.label
		}
	}
	return ""
}
