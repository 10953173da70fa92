// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/test/internal/process"
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// TestEveryModeRuns verifies that every mode is measured and that both schedulers place all pods.
// With so few nodes the numbers themselves are meaningless.
func TestEveryModeRuns(t *testing.T) {
	report, err := Run(t.Context(), Options{Nodes: 60, Sizes: []int{20}, Workloads: []int{10, 40}, Large: 500, Each: 5 * time.Millisecond, Progress: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Compared {
		if c.Sampled.Wall <= 0 || c.All.Wall <= 0 || c.Berth.Wall <= 0 {
			t.Errorf("%s was not measured: %+v", c.Mode, c)
		}
	}
	if len(report.Compared) != len(Modes)+1 { // all modes plus preemption
		t.Errorf("%d of %d modes were compared", len(report.Compared), len(Modes))
	}
	for _, f := range report.Filled {
		if !f.Complete || f.Pods != 500 {
			t.Errorf("%s: %d pods of 500 were placed", f.Mode, f.Pods)
		}
	}
	if len(report.Workloads) != 6 {
		t.Errorf("%d comparisons by the number of workloads, want 6", len(report.Workloads))
	}
	for _, c := range report.Workloads {
		if c.Sampled.CPU <= 0 || c.Berth.CPU <= 0 {
			t.Errorf("%d workloads were not measured: %+v", c.Apps, c)
		}
	}
	for name, plot := range map[string]func(string) error{"nodes.svg": report.Plot, "workloads.svg": report.PlotWorkloads} {
		path := filepath.Join(t.TempDir(), name)
		if err := plot(path); err != nil {
			t.Fatal(err)
		}
		if svg, err := os.ReadFile(path); err != nil || !bytes.Contains(svg, []byte("<svg")) {
			t.Errorf("no plot was written: %v", err)
		}
	}
}

func TestReportShowsGoals(t *testing.T) {
	wall := func(d time.Duration) Cost { return Cost{Wall: d, CPU: d} }
	report := &Report{
		Nodes:    5000,
		Compared: []Comparison{{Mode: "plain", Goal: 300, Sampled: wall(637 * time.Microsecond), All: wall(4416 * time.Microsecond), Berth: wall(2 * time.Microsecond)}},
		Sizes: []Steady{{Mode: "plain", Nodes: 5000, Decision: wall(2 * time.Microsecond)},
			{Mode: "plain", Nodes: 1_000_000, Decision: wall(7 * time.Microsecond)}},
		Filled: []Filling{{Mode: "plain", Nodes: 1_000_000, Pods: 1_000_000, Took: wall(8 * time.Second), NodeBytes: 300, PodBytes: 2000, Complete: true}},
	}
	var text strings.Builder
	report.Write(&text)
	for _, want := range []string{
		"637 µs", "4.42 ms", "318 ✓", "3.5 ✗", "8.0 s", "4.0 ✓", "300 ✓", "2000 ✗", "1,000,000 nodes",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, &text)
		}
	}
}

// TestFastestRoundCounts verifies that disturbances in some rounds do not change the measured cost
// of a step.
func TestFastestRoundCounts(t *testing.T) {
	r := rounds{each: 100 * time.Millisecond}
	for _, took := range []time.Duration{60, 11, 30} { // milliseconds for ten steps
		r.started, r.startCPU = time.Now().Add(-took*time.Millisecond), process.Own()
		r.stopSteps(10)
	}
	if got := r.costOfStep().Wall; got < 1100*time.Microsecond || got > 2*time.Millisecond {
		t.Errorf("one step takes %v, want about 1.1ms", got)
	}
	if !r.isDone() {
		t.Error("the measurement goes on though its time is up")
	}
}
