// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

func round(scheduler string, bound int, took, cpu time.Duration, mib int64) Round {
	return Round{Scheduler: scheduler, Pods: 1001, Bound: bound, First: time.Second, Took: took, Usage: process.Usage{CPU: cpu, Peak: mib << 20}}
}

func TestReportMarksGoalsThatAreReachedAndThoseThatAreNot(t *testing.T) {
	r := &Report{Nodes: 5000, Ceiling: 1250, Modes: []*ModeResult{
		{Mode: &Modes[0], Rounds: []Round{round("kube-scheduler", 1001, 4*time.Second, 2002*time.Millisecond, 280), round("Berth", 1001, time.Second, 200200*time.Microsecond, 141)}},
		{Mode: &Mode{Mode: driver.Spread, Times: 7}, Rounds: []Round{round("kube-scheduler", 1001, 6*time.Second, time.Second, 280), round("Berth", 900, time.Second, time.Second, 140)}},
	}}
	var out strings.Builder
	r.writeModes(&out)
	r.writeGoals(&out)
	for _, want := range []string{
		"| plain  | kube-scheduler | 1,001 | 1,001          | 250    | 1.0 s       | 2 ms      | 280 MiB     |",
		"| spread | Berth          | 1,001 | 900 (given up) | 899    |",
		"| plain  | 4.0 ✓            | 4    | 80 %                                      | 0.10 ✓                 | 0.1  | 0.50 ✗              | 0.5  |",
		"| spread | 5.4 ✗            | 7    | 72 %                                      | 1.11 ✗                 | 0.1  | 0.50 ✓              | 0.5  |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line\n%s\nin\n%s", want, &out)
		}
	}
}

// TestRateOfPreemptingPodsCountsFromTheStart verifies that the rate in the preemption mode includes
// the time before the first binding, in which the scheduler preempts.
func TestRateOfPreemptingPodsCountsFromTheStart(t *testing.T) {
	r := Round{Bound: 1000, First: 9 * time.Second, Took: time.Second, preempts: true}
	if got := r.PerSecond(); got != 100 {
		t.Errorf("%v pods/s, want 100", got)
	}
}

func TestThroughputIsOfWholeIntervals(t *testing.T) {
	began := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	var times []time.Time
	for i := range 50 { // ten per second, for five seconds
		times = append(times, began.Add(time.Duration(i)*100*time.Millisecond))
	}
	for i := range 101 { // then twenty per second, for five seconds; the last pod begins an incomplete interval
		times = append(times, began.Add(5*time.Second+time.Duration(i)*50*time.Millisecond))
	}
	rates, average := throughputOf(times)
	if !slices.Equal(rates, []float64{10, 20}) || average != 15 {
		t.Errorf("rates %v, average %v", rates, average)
	}
	if rates, average := throughputOf(nil); rates != nil || average != 0 {
		t.Errorf("of nothing: %v, %v", rates, average)
	}
}

// TestStartupSaysWhyPodsCannotBeCreated verifies that an error in the creation of pods is returned
// immediately.
func TestStartupSaysWhyPodsCannotBeCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := watch.NewFake()
		defer pods.Stop()
		w := &startupWatch{watch: pods, bound: map[string]time.Time{}, running: map[string]time.Time{}}
		began, created := time.Now(), make(chan error, 1)
		created <- errors.New("exceeded quota")
		err := w.followUntil(t.Context(), &process.Process{Ended: make(chan struct{})}, created, func() bool { return false })
		if err == nil || !strings.Contains(err.Error(), "exceeded quota") || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestReportHoldsStartupAgainstItsObjective(t *testing.T) {
	in := func(seconds ...float64) (all []time.Duration) {
		for _, s := range seconds {
			all = append(all, time.Duration(s*float64(time.Second)))
		}
		return all
	}
	r := &Report{Nodes: 1000, Startups: []Startup{
		{Scheduler: "kube-scheduler", Saturate: 30_000, Rates: []float64{90, 110}, Average: 100, Bound: in(1, 2), Run: in(1, 4), Startup: in(2, 5.5)},
		{Scheduler: "Berth", Saturate: 30_000, Rates: []float64{400}, Average: 400, Bound: in(0.01), Run: in(1), Startup: in(5)},
	}}
	var out strings.Builder
	r.Write(&out)
	for _, want := range []string{"5.5 s ✗", "5 s ✓", "30,000"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// TestPreemptingPodNeedsOneVictim verifies that a preempting pod does not fit on a node full of
// lower pods, and that it fits after the preemption of one of them.
func TestPreemptingPodNeedsOneVictim(t *testing.T) {
	var high *Mode
	for i := range Modes {
		if Modes[i].preempts {
			high = &Modes[i]
		}
	}
	low, need := lowerPod(0, 10).Spec.Containers[0].Resources.Requests.Cpu(), high.newPod(0).Spec.Containers[0].Resources.Requests.Cpu()
	free := driver.NodeAmounts.Cpu().DeepCopy()
	for range lowerPerNode {
		free.Sub(*low)
	}
	if free.Sign() < 0 || free.Cmp(*need) >= 0 {
		t.Errorf("%v CPUs are free on a full node, a preempting pod needs %v", &free, need)
	}
	free.Add(*low)
	if free.Cmp(*need) < 0 {
		t.Errorf("%v CPUs are free after one victim, a preempting pod needs %v", &free, need)
	}
}
