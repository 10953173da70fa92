package webhook

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// endpointHandler are health and metrics. A replica is alive as long as it answers here: what it
// lacks, it waits for, and a restart would bring nothing. It is ready when reviews are answered,
// and no longer when it shuts down, so that the Service leaves it out in time.
func (w *Webhook) endpointHandler() http.Handler {
	mux := http.NewServeMux()
	alive := func(out http.ResponseWriter, _ *http.Request) { fmt.Fprintln(out, "ok") }
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	// The body says what is missing: it is shown where a pod does not become ready.
	mux.HandleFunc("GET /readyz", func(out http.ResponseWriter, _ *http.Request) {
		if what := w.NotReady(); what != "" {
			http.Error(out, what, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(out, "ok")
	})
	// The webhook's own registry and that of Kubernetes' libraries, as in package serve.
	mux.Handle("GET /metrics", metrics.HandlerFor(
		prometheus.Gatherers{w.metrics.registry, legacyregistry.DefaultGatherer},
		metrics.HandlerOpts{ErrorHandling: metrics.ContinueOnError}))
	return mux
}
