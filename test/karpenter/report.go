// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
)

// report is the printed report of the runs.
type report struct {
	Pods          int    `json:"pods"`
	Seed          int64  `json:"seed"`
	Mix           string `json:"mix"`
	InstanceTypes int    `json:"instanceTypes"`

	Seconds      float64 `json:"seconds"` // median of the runs, like SetupSeconds
	SetupSeconds float64 `json:"setupSeconds"`
	PeakMiB      float64 `json:"peakMiB"` // peak memory of the process in all runs

	outcome           // of the cheapest run
	Runs    []outcome `json:"runs"`
}

// outcome is the result of one run. Runs differ, because Karpenter iterates over zones in the order
// of a Go map.
type outcome struct {
	SolveSeconds float64 `json:"solveSeconds"`
	CPUSeconds   float64 `json:"cpuSeconds"` // CPU time of all threads while solving
	Nodes        int     `json:"nodes"`
	Pending      int     `json:"pending"`
	CostPerHour  float64 `json:"costPerHour"`
	// Violations of zone constraints, because Karpenter does not choose all zones; see zoneSkew and
	// astray.
	ZoneSkew int `json:"zoneSkew"`
	Astray   int `json:"podsAstray"`

	NodesByType map[string]int `json:"nodesByType"`
	NodesByZone map[string]int `json:"nodesByZone"`
}

// measure runs Karpenter's scheduler the requested number of times, each time on an empty cluster,
// and checks every plan.
func (o settings) measure(ctx context.Context, pods []*corev1.Pod) (report, error) {
	pool, types := nodePool(), instanceTypes()
	r := report{Pods: o.pods, Seed: o.seed, Mix: o.mix, InstanceTypes: len(types)}
	if o.warmUp {
		if _, _, err := solve(ctx, pods, pool, types); err != nil {
			return r, err
		}
	}

	var setups, solves []float64
	for range o.times {
		results, took, err := solve(ctx, pods, pool, types)
		if err != nil {
			return r, err
		}
		p, err := newPlan(results)
		if err != nil {
			return r, err
		}
		if err := p.check(pods); err != nil {
			return r, fmt.Errorf("the plan does not hold: %w", err)
		}
		r.Runs = append(r.Runs, newOutcome(p, pods, took))
		setups, solves = append(setups, took.setup.Seconds()), append(solves, took.solve.Seconds())
	}

	r.Seconds, r.SetupSeconds = median(solves), median(setups)
	r.outcome = slices.MinFunc(r.Runs, func(a, b outcome) int { return cmp.Compare(a.CostPerHour, b.CostPerHour) })
	r.PeakMiB = usage().peakMiB
	return r, nil
}

func newOutcome(p plan, pods []*corev1.Pod, t took) outcome {
	o := outcome{
		SolveSeconds: t.solve.Seconds(),
		CPUSeconds:   t.cpu.Seconds(),
		Nodes:        len(p.nodes),
		Pending:      p.pending,
		CostPerHour:  p.cost,
		ZoneSkew:     p.zoneSkew(pods),
		Astray:       p.astray(pods),
		NodesByType:  map[string]int{},
		NodesByZone:  map[string]int{},
	}
	for _, n := range p.nodes {
		o.NodesByType[n.Name]++
		o.NodesByZone[n.zone()]++
	}
	return o
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

func (r report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "pods\t%d %s, seed %d\n", r.Pods, r.Mix, r.Seed)
	fmt.Fprintf(w, "seconds\t%.2f, and %.2f to set up: the median of %d\n", r.Seconds, r.SetupSeconds, len(r.Runs))
	fmt.Fprintf(w, "peak memory\t%.0f MiB\n\n", r.PeakMiB)

	fmt.Fprintln(w, "run\tseconds\tCPU seconds\tcost per hour\tnodes\tpods pending\tzone skew\tpods astray")
	for i, o := range r.Runs {
		fmt.Fprintf(w, "%d\t%.2f\t%.2f\t%.4f\t%d\t%d\t%d\t%d\n",
			i+1, o.SolveSeconds, o.CPUSeconds, o.CostPerHour, o.Nodes, o.Pending, o.ZoneSkew, o.Astray)
	}
	fmt.Fprintf(w, "\nThe cheapest: %s\nin %s\n", counts(r.NodesByType), counts(r.NodesByZone))
	return w.Flush()
}

// counts formats the eight largest counts, the largest first.
func counts(of map[string]int) string {
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		if of[a] != of[b] {
			return of[b] - of[a]
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, name := range names[:min(len(names), 8)] {
		parts = append(parts, fmt.Sprintf("%d %s", of[name], name))
	}
	if len(names) > 8 {
		parts = append(parts, "…")
	}
	return strings.Join(parts, ", ")
}
