package probe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// metrics are the kubelet's at /metrics/probes, kept as long as the pod exists.
type metrics struct {
	registry *prometheus.Registry
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total",
			Help: "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds",
			Help: "[ALPHA] Duration in seconds for a probe response.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
	m.registry.MustRegister(m.total, m.duration)
	return m
}

// count counts a probe with a result. One that could not be made does not count, just as for the
// container.
func (m *metrics) count(kind Kind, pod *v1.Pod, c *v1.Container, result Result, took time.Duration) {
	switch result {
	case Success:
		m.total.WithLabelValues(kind.String(), "successful", c.Name, pod.Name, pod.Namespace, string(pod.UID)).Inc()
		m.duration.WithLabelValues(kind.String(), c.Name, pod.Name, pod.Namespace).Observe(took.Seconds())
	case Failure:
		m.total.WithLabelValues(kind.String(), "failed", c.Name, pod.Name, pod.Namespace, string(pod.UID)).Inc()
	}
}

func (m *metrics) forget(pod *v1.Pod) {
	m.total.DeletePartialMatch(prometheus.Labels{"pod_uid": string(pod.UID)})
	m.duration.DeletePartialMatch(prometheus.Labels{"pod": pod.Name, "namespace": pod.Namespace})
}

// Metrics are those of /metrics/probes.
func (p *Prober) Metrics() prometheus.Gatherer { return p.metrics.registry }
