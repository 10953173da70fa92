// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/component-base/metrics"
)

func get(handler http.Handler, path string, headers ...string) (int, string) {
	return do(handler, http.MethodGet, path, "", headers...)
}

func do(handler http.Handler, method, path, body string, headers ...string) (int, string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func endpoints(t *testing.T) *Endpoints {
	t.Helper()
	own := metrics.NewKubeRegistry()
	things := metrics.NewCounter(&metrics.CounterOpts{Name: "things_total", Help: "Things."})
	own.MustRegister(things)
	things.Inc()
	flags := pflag.NewFlagSet("part", pflag.ContinueOnError)
	flags.Int("answer", 42, "")
	return &Endpoints{
		Component: "part",
		Metrics:   own,
		Config:    func() map[string]any { return map[string]any{"componentconfig": map[string]any{"kind": "Settings"}} },
		Flags:     flags,
	}
}

func TestHealthIsAsKubernetesComponentsTellIt(t *testing.T) {
	var broken error
	e := endpoints(t)
	e.Live = []Check{{Name: "leaderElection", Failed: func(*http.Request) error { return nil }}}
	e.Ready = []Check{{Name: "watches", Failed: func(*http.Request) error { return broken }}}
	handler := e.Handler()
	for _, row := range []struct {
		path string
		code int
		body string
	}{
		{"/healthz", 200, "ok"},
		{"/livez", 200, "ok"},
		{"/livez/leaderElection", 200, "ok"},
		{"/livez?verbose", 200, "[+]ping ok\n[+]leaderElection ok\nlivez check passed\n"},
		{"/readyz", 200, "ok"},
	} {
		if code, body := get(handler, row.path); code != row.code || body != row.body {
			t.Errorf("%s: %d %q, want %d %q", row.path, code, body, row.code, row.body)
		}
	}
	broken = errors.New("nodes are not known yet")
	for _, row := range []struct {
		path string
		code int
		body string
	}{
		{"/readyz", 500, "[+]ping ok\n[-]watches failed: nodes are not known yet\nreadyz check failed\n"},
		{"/readyz/watches", 500, "[-]watches failed: nodes are not known yet\nreadyz check failed\n"},
		{"/readyz?exclude=watches", 200, "ok"},
		{"/livez", 200, "ok"},
	} {
		if code, body := get(handler, row.path); code != row.code || body != row.body {
			t.Errorf("%s: %d %q, want %d %q", row.path, code, body, row.code, row.body)
		}
	}
}

func TestMetricsAreThePartsAndTheProcess(t *testing.T) {
	code, body := get(endpoints(t).Handler(), "/metrics")
	for _, want := range []string{"\nthings_total 1\n", "process_start_time_seconds", "go_goroutines", "kubernetes_build_info"} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, no %q", code, want)
		}
	}
	if code, body := get(endpoints(t).Handler(), "/metrics/slis"); code != 200 || !strings.Contains(body, "kubernetes_healthcheck") {
		t.Errorf("/metrics/slis: %d %s", code, body)
	}
}

func TestPagesForPeopleAndForPrograms(t *testing.T) {
	handler := endpoints(t).Handler()
	for path, want := range map[string]string{
		"/flagz":   "answer=42\n",
		"/statusz": "Paths: /configz /flagz /healthz /livez /metrics /readyz\n",
		"/configz": `{"componentconfig":{"kind":"Settings"}}`,
		"/":        `"/metrics"`,
	} {
		if code, body := get(handler, path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d, no %q in\n%s", path, code, want, body)
		}
	}
	for path, kind := range map[string]string{"/flagz": "Flagz", "/statusz": "Statusz"} {
		_, body := get(handler, path, "Accept", "application/json;as="+kind+";v=v1beta1;g=config.k8s.io")
		var object struct {
			APIVersion, Kind string
			Metadata         struct{ Name string }
		}
		if err := json.Unmarshal([]byte(body), &object); err != nil || object.Kind != kind || object.APIVersion != "config.k8s.io/v1beta1" || object.Metadata.Name != "part" {
			t.Errorf("%s: %v %s", path, err, body)
		}
	}
	if code, _ := get(handler, "/nothing"); code != 404 {
		t.Errorf("/nothing: %d", code)
	}
}

func TestProfilesAreServedOnlyIfWanted(t *testing.T) {
	e := endpoints(t)
	if code, _ := get(e.Handler(), "/debug/pprof/"); code != 404 {
		t.Errorf("served without being wanted: %d", code)
	}
	e.Profiling = true
	if code, body := get(e.Handler(), "/debug/pprof/goroutine?debug=1"); code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d %.100s", code, body)
	}
}

func TestNothingCanBeSetButTheVerbosity(t *testing.T) {
	e := endpoints(t)
	e.Profiling = true
	handler := e.Handler()
	for _, path := range []string{"/metrics", "/configz", "/debug/pprof/heap", "/debug/flags/v"} {
		if code, _ := do(handler, http.MethodPost, path, ""); code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, code)
		}
	}
	if code, body := do(handler, http.MethodPut, "/debug/flags/v", "3"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := do(handler, http.MethodPut, "/debug/flags/v", "three"); code != http.StatusBadRequest {
		t.Errorf("%d", code)
	}
	_, _ = do(handler, http.MethodPut, "/debug/flags/v", "0")
}
