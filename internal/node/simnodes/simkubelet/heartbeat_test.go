// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"slices"
	"testing"
	"time"
)

// heartbeats runs a fleet for a while and records the times of each node's renewals and reports.
func heartbeats(t *testing.T, count int, during time.Duration) (renewals, reports map[string][]time.Duration) {
	t.Helper()
	shape := testShape()
	shape.Count = count
	shape.RenewInterval = RenewIntervalFor(count)
	w := newWorld(shape)
	w.start()
	renewals, reports = map[string][]time.Duration{}, map[string][]time.Duration{}
	for until := w.now.Add(during); ; {
		at, ok := w.fleet.Next()
		if !ok || at.After(until) {
			return renewals, reports
		}
		w.now = at
		w.fleet.Tick(at)
		for actions := w.fleet.Take(); len(actions) > 0; actions = w.fleet.Take() {
			for _, a := range actions {
				switch a.Kind {
				case Renew:
					renewals[a.Node] = append(renewals[a.Node], at.Sub(w.began))
				case PatchNode:
					reports[a.Node] = append(reports[a.Node], at.Sub(w.began))
				}
				w.carryOut(a)
			}
		}
	}
}

func TestStatusIsReportedEveryFiveMinutes(t *testing.T) {
	_, reports := heartbeats(t, 1, time.Hour)
	if n := len(reports["node-1"]); n < 12 || n > 13 {
		t.Errorf("%d reports in an hour, want one every 5 min", n)
	}
}

func TestLeasesAreRenewedInTimeAndSpreadEvenly(t *testing.T) {
	const count, duration = 2000, 5 * time.Minute
	renewals, _ := heartbeats(t, count, duration)
	interval := RenewIntervalFor(count)
	perSecond := make([]int, duration/time.Second+1)
	for name, times := range renewals {
		last := time.Duration(0)
		for _, at := range times {
			if gap := at - last; gap > interval*105/100 {
				t.Fatalf("%s: %s without a renewal, want at most %s", name, gap, interval)
			}
			last = at
			perSecond[at/time.Second]++
		}
	}
	average := count / int(interval/time.Second)
	if busiest := slices.Max(perSecond[1:]); busiest > 2*average {
		t.Errorf("%d renewals in one second, %d on average", busiest, average)
	}
}

func TestRenewIntervalStaysWithinTheLease(t *testing.T) {
	for count, want := range map[int]time.Duration{
		0: 10 * time.Second, 3: 10 * time.Second, 1000: 10 * time.Second,
		1500: 15 * time.Second, 5000: 20 * time.Second, 100000: 20 * time.Second,
	} {
		if got := RenewIntervalFor(count); got != want {
			t.Errorf("%d nodes: every %s, want %s", count, got, want)
		}
	}
}
