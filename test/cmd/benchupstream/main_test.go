// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestFiguresAreReadAndTheMedianCounts(t *testing.T) {
	rate, err := throughput("BenchmarkPerfScheduling/SchedulingBasic/5Nodes-2 \t 1\t 1.5e+02 SchedulingThroughput/Average\t 3 SchedulingThroughput/Perc50\n")
	if err != nil || rate != 150 {
		t.Errorf("got %v, %v", rate, err)
	}
	if rate, err := throughput(`SchedulingBasic/5Nodes/ns: expected "SchedulingThroughput" "Average" to be higher: got 129.900000, want 390.000000`); err != nil || rate != 129.9 {
		t.Errorf("got %v, %v", rate, err)
	}
	if _, err := throughput("SKIP"); err == nil {
		t.Error("a workload that was not run has a throughput")
	}
	got := line("W", figure{100, 10, 50}, median([]figure{{1, 9, 9}, {200, 5, 100}, {300, 1, 200}}))
	if want := "| W | 100 pods/s, 10 s, 50 MiB | 200 pods/s, 5 s, 100 MiB | 2.00 | 0.50 | 2.00 |"; got != want {
		t.Errorf("got %s", got)
	}
}

// TestUpstreamHasTheWorkloads verifies that upstream has all default workloads.
func TestUpstreamHasTheWorkloads(t *testing.T) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, workload := range workloads {
		name, benchmark, _ := strings.Cut(workload, " ")
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "test/integration/scheduler_perf", name, "performance-config.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		benchmark, kind, _ := strings.Cut(benchmark, "/")
		_, from, _ := strings.Cut(string(text), "- name: "+benchmark+"\n")
		from, _, _ = strings.Cut(from, "\n- name: ")
		if !strings.Contains(from, "  - name: "+kind+"\n") {
			t.Errorf("there is no %s", workload)
		}
	}
}
