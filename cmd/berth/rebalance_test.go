// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRoomForNobodyIsNotMade verifies that defragment rejects the name of a missing pod: a mistyped
// name would otherwise move pods in vain, without an error.
func TestRoomForNobodyIsNotMade(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodGet || r.URL.Path != "/api/v1/namespaces/shop/pods/nobody" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
	}))
	defer server.Close()
	var out, errs screen
	words := strings.Fields(liveConfig(t, server.URL).Replace("berth rebalance defragment=nobody --execute CONF"))
	if code := runCommand(t.Context(), words, &out, &errs); code != 1 || !strings.Contains(errs.String(), "defragment: there is no pod shop/nobody") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
}

// TestFlagsOfKubectlDrain verifies that berth drain accepts kubectl drain's flags.
func TestFlagsOfKubectlDrain(t *testing.T) {
	flags := newDrainCommand().Flags()
	for _, name := range []string{
		"chunk-size", "delete-emptydir-data", "disable-eviction", "dry-run", "force", "grace-period", "ignore-daemonsets", "pod-selector",
		"selector", "skip-wait-for-delete-timeout", "timeout",
	} {
		if flags.Lookup(name) == nil {
			t.Errorf("there is no --%s", name)
		}
	}
}
