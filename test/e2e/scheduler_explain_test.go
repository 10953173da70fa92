// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/explain"
)

// explained returns the JSON result of berth explain for a pod.
func explained(t *testing.T, pod string, flags ...string) *explain.Explanation {
	t.Helper()
	r := berth(t, append([]string{"explain", "pod/" + pod, "-o", "json"}, flags...)...)
	if r.code != 0 {
		t.Fatalf("%d: %s", r.code, r.stderr)
	}
	e := &explain.Explanation{}
	if err := json.Unmarshal([]byte(r.stdout), e); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestExplainTellsWhatTheSchedulerDecided verifies that berth explain finds the scheduler of berth
// up, and reports the scheduler's last decision and whether that decision still holds.
func TestExplainTellsWhatTheSchedulerDecided(t *testing.T) {
	simulate(t, "told-", "--count", "1", "--cpu", "2", "--label", "pool=told")
	const there = "spec nodeSelector: {pool: told}"
	apply(t, pod("told-waits", "", there, "container resources: {requests: {cpu: 8}}"))
	awaits(t, patience, "pod/told-waits", "{.status.conditions[0].reason}", "Unschedulable")
	e := explained(t, "told-waits")
	d := e.Decision
	if d == nil || d.Result != decision.Unschedulable || d.Queue == nil || d.Queue.Place != "unschedulable" || d.Queue.Attempts == 0 || len(d.Queue.Wakes) == 0 {
		t.Fatalf("of a pod that waits: %+v", d)
	}
	if !e.LastDecision.Holds || d.Message != e.Message || d.Reasons["Insufficient cpu"] != 1 {
		t.Errorf("holds %t, the scheduler says %q and the engine %q", e.LastDecision.Holds, d.Message, e.Message)
	}
	berth(t, "explain", "pod/told-waits").wants(t, 0, "This still holds", "it is retried after an event that can help")

	apply(t, pod("told-runs", "", there))
	awaits(t, patience, "pod/told-runs", "{.status.phase}", "Running")
	e = explained(t, "told-runs")
	if e.Decision == nil || e.Decision.Result != decision.Placed || e.Decision.Node != "told-1" || !e.LastDecision.Holds {
		t.Errorf("of a pod that runs: %+v, %+v", e.Decision, e.LastDecision)
	}
	kubectl(t, "taint", "nodes", "told-1", "k=v:NoSchedule")
	eventually(t, patience, func() error {
		if e := explained(t, "told-runs"); e.LastDecision.Holds {
			return fmt.Errorf("on a node that has a taint now: %+v", e.LastDecision)
		}
		return nil
	})
	t.Run("by URL, and without", func(t *testing.T) { asksWhere(t) })
	kubectl(t, "delete", "pod", "told-waits", "told-runs", "--now")
}

// asksWhere verifies that --scheduler-url takes precedence over the file scheduler.url, and that an
// unreachable scheduler is reported but is not an error.
func asksWhere(t *testing.T) {
	urls, err := os.ReadFile(filepath.Join(shared.dir, "scheduler.url"))
	if err != nil {
		t.Fatal(err)
	}
	url := strings.Fields(string(urls))[0]
	if e := explained(t, "told-waits", "--scheduler-url", url); e.Decision == nil {
		t.Error("nothing from " + url)
	}
	r := berth(t, "explain", "pod/told-waits", "--scheduler-url", "http://127.0.0.1:1")
	r.wants(t, 0, "Place in the queue")
	if !strings.Contains(r.stderr, "not asked: the scheduler: ") {
		t.Errorf("says %q", r.stderr)
	}
	response, err := http.Get(url + decision.Path + "default/nobody")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusNotFound || !strings.HasPrefix(string(text), "pod default/nobody ") {
		t.Errorf("of nobody: %s: %s", response.Status, text)
	}
}
