// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"
)

// UpgradeReport holds a replacement campaign's actions and findings.
type UpgradeReport struct {
	*Report
	Steps     []step
	Flow      figures
	Loaded    time.Duration // duration of pod creation
	Evictions figures       // delays of taint evictions
	Latest    []leftLate
	Changes   int // number of changes of leaders
	Released  int // number of changes for which the previous leader released its Lease
}

func (u *upgrade) makeUpgradeReport() *UpgradeReport {
	r := &UpgradeReport{Report: u.campaign.makeReport(), Steps: u.steps}
	r.Flow, r.Loaded = u.flow.allWaits(), u.flow.loaded
	u.observer.mu.Lock()
	left := slices.SortedFunc(slices.Values(u.observer.left), func(a, b leftLate) int { return cmp.Compare(a.late, b.late) })
	u.observer.mu.Unlock()
	r.Evictions.pods = len(left)
	for _, one := range left {
		r.Evictions.waits = append(r.Evictions.waits, one.late)
	}

	r.Latest = left[max(0, len(left)-5):]
	u.leases.mu.Lock()
	defer u.leases.mu.Unlock()
	for _, change := range u.leases.changes {
		r.Changes++
		if change.released {
			r.Released++
		}
	}

	return r
}

// String formats the step as a line.
func (s step) String() string {
	ms := 10 * time.Millisecond
	return fmt.Sprintf("%-12s to the %s version: ended in %v, ready %v later; a Lease without a holder for %v, no pod bound for %v",
		s.part, s.to, s.stopped.Round(ms), s.ready.Round(ms), s.leaderless.Round(ms), s.unbound.Round(ms))
}

// Print writes the human-readable report.
func (r *UpgradeReport) Print(to io.Writer) {
	fmt.Fprintln(to)
	for _, s := range r.Steps {
		fmt.Fprintln(to, s)
	}
	fmt.Fprintf(to, "\n%.1f pods a second came\nfrom the creation of a pod to its node: %v\nhow late pods left for a "+
		"taint (looked at twice a second): %v\nleaders changed %d times, %d of them by a Lease that was given away\n",
		float64(r.Flow.pods)/max(1, r.Loaded.Seconds()), r.Flow, r.Evictions, r.Changes, r.Released)
	for _, one := range r.Latest {
		fmt.Fprintf(to, "  %s %s left %s %v late\n", one.at.Format("15:04:05.000"), one.pod, one.node, one.late.Round(time.Millisecond))
	}
	r.Report.Print(to)
}
