// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// TestNodesThatCannotBeAreRefusedAtOnce verifies that impossible simulated nodes are rejected
// before anything is started.
func TestNodesThatCannotBeAreRefusedAtOnce(t *testing.T) {
	neutral(t)
	for args, want := range map[string]string{
		"up --controlplane /nowhere --nodes 100000": "--nodes 100000: with 110 pods each there are addresses for",
		"up --controlplane /nowhere --nodes -1":     "--nodes -1: must be 0 or more",
		"nodes --count 100000":                      "--count 100000: with 110 pods each there are addresses for",
		"nodes --region !":                          `--region "!": a valid label must`,
	} {
		if code, _, errs := command(t, strings.Fields(args)...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s", args, code, errs)
		}
	}
}

// TestWhatBerthUpIsGivenIsCheckedFirst verifies that an unreadable configuration and occupied ports
// are reported before anything is started.
func TestWhatBerthUpIsGivenIsCheckedFirst(t *testing.T) {
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	port := taken.URL[strings.LastIndexByte(taken.URL, ':')+1:]
	bad := file(t, "bad.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparallelism: -1\n")
	for args, want := range map[string]string{
		"--config " + bad:                    "parallelism: Invalid value: -1",
		"--ui-port " + port:                  "--ui-port " + port + ": ",
		"--port " + port:                     "--port " + port + ": ",
		"--serve-port " + port:               "--serve-port " + port + ": ",
		"--fresh --config /nowhere/new.yaml": "--config: open /nowhere/new.yaml",
	} {
		dir := t.TempDir()
		code, _, errs := command(t, append(strings.Fields("up --controlplane /bin/false --data-dir "+dir), strings.Fields(args)...)...)
		if code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d: %s", args, code, errs)
		}
		if logs, _ := filepath.Glob(filepath.Join(dir, "*.log")); len(logs) > 0 {
			t.Errorf("%s: started %v", args, logs)
		}
	}
}
