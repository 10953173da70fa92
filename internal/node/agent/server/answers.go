package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func writeJSON(w http.ResponseWriter, what any) {
	content, err := json.Marshal(what)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(content)
}

func (s *Server) pods(w http.ResponseWriter) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []v1.Pod{}}
	for _, pod := range s.options.Pods() {
		list.Items = append(list.Items, *pod)
	}
	writeJSON(w, list)
}

// Healthz serves /healthz and /healthz/CHECK without authentication: nothing else may be on its
// listener.
func Healthz(healthy map[string]func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimSuffix(r.URL.Path, "/")
		only, one := strings.CutPrefix(path, "/healthz/")
		if r.Method != http.MethodGet || path != "/healthz" && !one {
			http.Error(w, "404: Page Not Found", http.StatusNotFound)
			return
		}
		if !one {
			only = ""
		}
		answerHealthz(w, healthy, only)
	})
}

// answerHealthz answers as all Kubernetes components do: "ok", or the checks one by one.
func answerHealthz(w http.ResponseWriter, healthy map[string]func() error, only string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	checks := maps.Clone(healthy)
	if checks == nil {
		checks = map[string]func() error{}
	}
	checks["ping"] = func() error { return nil }
	if only != "" {
		check, ok := checks[only]
		if !ok {
			http.Error(w, "404: Page Not Found", http.StatusNotFound)
			return
		}
		checks = map[string]func() error{only: check}
	}
	var told strings.Builder
	failed := false
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name](); err != nil {
			failed = true
			fmt.Fprintf(&told, "[-]%s failed: %v\n", name, err)
		} else {
			fmt.Fprintf(&told, "[+]%s ok\n", name)
		}
	}
	if failed {
		http.Error(w, told.String()+"healthz check failed", http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, "ok")
}

func (s *Server) configz(w http.ResponseWriter) {
	if s.options.Config == nil {
		http.Error(w, "404: Page Not Found", http.StatusNotFound)
		return
	}
	writeJSON(w, map[string]any{"kubeletconfig": s.options.Config()})
}

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	if s.options.Stats == nil {
		http.Error(w, "404: Page Not Found", http.StatusNotFound)
		return
	}
	summary, err := s.options.Stats.Summary(r.Context(), r.URL.Query().Get("only_cpu_and_memory") == "true")
	if err != nil {
		http.Error(w, "Internal Error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, summary)
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request, path string) {
	gatherer, ok := s.options.Metrics[strings.TrimSuffix(path, "/")]
	if !ok {
		http.Error(w, "404: Page Not Found", http.StatusNotFound)
		return
	}
	promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}
