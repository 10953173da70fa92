// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

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
