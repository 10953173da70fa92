// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	controllerReport = `{"apiVersion":"berth.dev/v1alpha1","kind":"ControllerShadow","since":"2026-01-01T10:00:00Z","until":"2026-01-08T10:00:00Z","nodes":3,"pods":7,
"tallies":{"eviction":{"decisions":4,"outcomes":{"same":3,"only-other":1}},"taint":{"decisions":2,"outcomes":{"same":2}}}}`
	schedulerReport = `{"apiVersion":"berth.dev/v1alpha1","kind":"Shadow","since":"2026-01-01T10:00:00Z","until":"2026-01-08T10:00:00Z","pods":10,"best":6,"worse":4,"meanGainWorse":12.5,"maxGain":30}`
)

// TestShadowReportIsMadeFromFilesAndAddresses verifies that reports are read from files and URLs,
// and that unreadable sources are errors.
func TestShadowReportIsMadeFromFilesAndAddresses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "scheduler.json")
	if err := os.WriteFile(file, []byte(schedulerReport), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/shadow" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"controller":` + controllerReport + `}`))
	}))
	defer server.Close()
	ask := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := runCommand(t.Context(), append([]string{"berth", "shadow", "report"}, args...), &out, &errs)
		return code, out.String(), errs.String()
	}
	code, out, errs := ask(file, server.URL+"/shadow")
	for _, want := range []string{"compared for 7.0 days", "evicted without a reason at that moment | 1 |", "4 of 10 (40.0 %), 12.5 points below", "| both, of all | 75.00 % | 100.00 % |"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d %s: no %q in\n%s", code, errs, want, out)
		}
	}
	if code, out, _ := ask("-o", "html", file); code != 0 || !strings.HasPrefix(out, "<!doctype html>") {
		t.Errorf("%d %.80s", code, out)
	}
	if code, out, _ := ask("-o", "json", file); code != 0 || !strings.Contains(out, `"worse": 4`) {
		t.Errorf("%d %.80s", code, out)
	}
	for _, wrong := range [][]string{{server.URL + "/other"}, {filepath.Join(dir, "none")}, {"-o", "pdf", file}, {}} {
		if code, _, errs := ask(wrong...); code == 0 || errs == "" {
			t.Errorf("%v: %d %q", wrong, code, errs)
		}
	}
}
