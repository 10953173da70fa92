package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
)

// A command that takes a while says on a terminal what it does; nothing of it is left in the end,
// and nothing of it is written elsewhere.
func TestProgressOnATerminal(t *testing.T) {
	after, every := meterAfter, meterEvery
	meterAfter, meterEvery = 0, time.Hour
	t.Cleanup(func() { meterAfter, meterEvery = after, every })
	town := file(t, "town.yaml", smallTown)
	for args, want := range map[string]string{
		"explain pod/big":         "explaining big",
		"explain -l !none":        "explaining 2 of 2 pods",
		"pending":                 "asking about the cluster",
		"capacity":                "asking about the cluster",
		"what-if cordon node-1":   "forecasting",
		"rebalance":               "planning moves",
		"evictions":               "taking in the cluster",
		"simulate --for 10m":      "simulating",
		"what-if uncordon node-1": "reading",
	} {
		var out, shown, piped screen
		words := append(strings.Fields(args), "-f", town)
		if code := run(context.Background(), append([]string{"berth"}, words...), &out, answer.Terminal{Writer: &shown, Width: 80}); code != 0 {
			t.Errorf("%s: exit code %d: %s", args, code, shown.String())
		}
		run(context.Background(), append([]string{"berth"}, words...), &out, &piped)
		text := shown.String()
		if !strings.Contains(text, "berth: ") || !strings.Contains(text, want) {
			t.Errorf("%s: no %q in %q", args, want, text)
		}
		if last := text[strings.LastIndex(text, "\r"):]; strings.Contains(last, "berth: ") {
			t.Errorf("%s: the line is left: %q", args, last)
		}
		if text := piped.String(); strings.ContainsAny(text, "\r\x1b") {
			t.Errorf("%s: written to a pipe: %q", args, text)
		}
	}
}

// So do commands that talk to a cluster, for as long as it takes to answer, also if it refuses.
func TestProgressOfALiveCluster(t *testing.T) {
	after, every := meterAfter, meterEvery
	meterAfter, meterEvery = 0, time.Hour
	t.Cleanup(func() { meterAfter, meterEvery = after, every })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/api/v1/nodes" {
			_, _ = io.WriteString(w, `{"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "node-1", "uid": "1"}}]}`)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`)
	}))
	defer server.Close()
	for args, want := range map[string]string{
		"pending -A":           "reading",
		"explain pod/web":      "reading",
		"what-if drain node-1": "reading",
		"rebalance --execute":  "planning moves",
		"check":                "checking the cluster",
	} {
		var out, shown screen
		words := strings.Fields(liveConfig(t, server.URL).Replace(args + " CONF"))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		run(ctx, append([]string{"berth"}, words...), &out, answer.Terminal{Writer: &shown, Width: 80})
		cancel()
		text := shown.String()
		if !strings.Contains(text, "berth: ") || !strings.Contains(text, want) {
			t.Errorf("%s: no %q in %q", args, want, text)
		}
		if at := strings.LastIndex(text, "\x1b[K"); at < 0 || strings.Contains(text[at:], want) {
			t.Errorf("%s: the line is left: %q", args, text)
		}
	}
}

// For two seconds a command says nothing.
func TestProgressWaits(t *testing.T) {
	var shown screen
	m := startMeter(answer.Terminal{Writer: &shown, Width: 80})
	m.begin("reading")
	m.stop()
	if text := shown.String(); text != "" {
		t.Errorf("%q", text)
	}
}
