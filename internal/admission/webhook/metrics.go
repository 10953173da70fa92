// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-k8s/berth/internal/kube/instrument"
)

// instruments are the webhook's metrics. They belong to a webhook rather than to the process, so
// that a process may have several webhooks, as tests do.
type instruments struct {
	registry  metrics.KubeRegistry
	reviews   *metrics.CounterVec   // by path, resource, operation and result
	duration  *metrics.HistogramVec // in seconds, by path
	expiry    *metrics.Gauge        // in seconds since 1970
	evictions *metrics.CounterVec   // by result
	renewals  *metrics.Counter      // by this replica
}

// newInstruments returns instruments in a new registry.
func newInstruments() *instruments {
	m := &instruments{
		registry: metrics.NewKubeRegistry(),
		reviews: instrument.CounterVec("berth_webhook_reviews_total",
			"Reviews by path, resource, operation and result: allowed, changed, refused, or failed, which is no answer.",
			"path", "resource", "operation", "result"),
		duration: instrument.HistogramVec("berth_webhook_review_duration_seconds",
			"Duration of a review in the webhook.",
			// The buckets range from the typical duration for a pod, some 100 µs, to the API
			// server's longest timeout.
			metrics.ExponentialBuckets(0.0001, 2, 19), "path"),
		evictions: instrument.CounterVec("berth_webhook_evictions_total",
			"Evictions judged by the guard: held, denied (after the deadline), or admitted because of the controller, "+
				"deadline (held for too long), unanswered (no controller), unguarded (not ready, or of another kind), "+
				"exempt (a dry run, or replaced), bound (too many), failed.",
			"result"),
		expiry: instrument.Gauge("berth_webhook_certificate_expiration_timestamp_seconds",
			"When the serving certificate expires."),
		renewals: instrument.Counter("berth_webhook_certificate_renewals_total",
			"Certificates that this replica made."),
	}
	m.registry.MustRegister(m.allMetrics()...)
	return m
}

// allMetrics lists the metrics in the order of the documentation.
func (m *instruments) allMetrics() []metrics.Registerable {
	return []metrics.Registerable{m.reviews, m.duration, m.expiry, m.renewals, m.evictions}
}

// Metrics lists the webhook's metrics without values, for the documentation.
func Metrics() []metrics.Registerable { return newInstruments().allMetrics() }

// countReview counts a review by its result. The results changed and refused show the effect of the
// rules; failed means that a pod may have been created without them. request is nil for a malformed
// review, and response is nil for a failed one.
func (m *instruments) countReview(path string, request *admissionv1.AdmissionRequest,
	response *admissionv1.AdmissionResponse, err error, took time.Duration) {
	resource, operation, result := "", "", "allowed"
	if request != nil {
		// Use only label values of a closed set, because any client can send a review.
		if resource = resourceOf(request); resource != "" {
			operation = string(request.Operation)
		}
	}
	switch {
	case err != nil:
		result = "failed"
	case !response.Allowed:
		result = "refused"
	case response.Patch != nil:
		result = "changed"
	}
	m.reviews.WithLabelValues(path, resource, operation, result).Inc()
	m.duration.WithLabelValues(path).Observe(took.Seconds())
}

// endpointHandler serves health and metrics. A replica is alive while it responds here; it waits
// for missing prerequisites, because a restart would not help. It is ready while it serves reviews,
// but not during its shutdown, so that the Service removes it in time.
func (w *Webhook) endpointHandler() http.Handler {
	mux := http.NewServeMux()
	alive := func(out http.ResponseWriter, _ *http.Request) { fmt.Fprintln(out, "ok") }
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	// The body names the missing prerequisite, which the events of an unready pod show.
	mux.HandleFunc("GET /readyz", func(out http.ResponseWriter, _ *http.Request) {
		if what := w.NotReady(); what != "" {
			http.Error(out, what, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(out, "ok")
	})
	// Serve the webhook's own registry and the registry of Kubernetes' libraries, as in package
	// serve.
	mux.Handle("GET /metrics", metrics.HandlerFor(
		prometheus.Gatherers{w.metrics.registry, legacyregistry.DefaultGatherer},
		metrics.HandlerOpts{ErrorHandling: metrics.ContinueOnError}))
	return mux
}
