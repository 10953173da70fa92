// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Options selects the measurements.
type Options struct {
	// Modes by name; empty means all. They include "preemption".
	Modes []string
	// Nodes is the size at which both sides are compared.
	Nodes int
	// Sizes lists the sizes for measuring only Berth.
	Sizes []int
	// Workloads lists the numbers of workloads with distinct selectors at which both sides are
	// compared.
	Workloads []int
	// Large nodes are filled with as many pods; 0 skips it.
	Large int
	// Each measurement takes about so long.
	Each time.Duration
	// Progress receives progress messages.
	Progress io.Writer
}

// Report holds the measurements.
type Report struct {
	Nodes     int
	Compared  []Comparison // preemption, which has no size, is the last
	Workloads []Comparison
	Sizes     []Steady
	Filled    []Filling
}

// Comparison is both sides' cost of one decision.
type Comparison struct {
	Mode string
	// Apps is the number of workloads, in Report.Workloads.
	Apps int
	Goal float64
	// Within is the goal instead if it is not 0; see Mode.
	Within time.Duration
	// Sampled is kube-scheduler's default; All evaluates all nodes (or all candidates), like Berth.
	Sampled, All, Berth Cost
}

// Run measures.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Nodes: o.Nodes}
	for i := range Modes {
		if m := &Modes[i]; driver.Chosen(o.Modes, m.Name) {
			if err := r.compareMode(ctx, o, m); err != nil {
				return r, err
			}
		}
	}

	if driver.Chosen(o.Modes, full.Name) {
		if err := r.comparePreemption(ctx, o); err != nil {
			return r, err
		}
	}
	for _, m := range driver.Selecting {
		if err := r.byWorkloads(ctx, o, m); err != nil {
			return r, err
		}
	}

	for i := range Modes {
		if m := &Modes[i]; driver.Chosen(o.Modes, m.Name) {
			if err := r.measureAlone(o, m); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

func (o *Options) printProgress(format string, args ...any) {
	fmt.Fprintf(o.Progress, format+"\n", args...)
}

func (r *Report) compareMode(ctx context.Context, o Options, m *Mode) (err error) {
	o.printProgress("%s: kube-scheduler and Berth, %d nodes", m.Name, o.Nodes)
	c := Comparison{Mode: m.Name, Goal: m.Goal, Within: m.Within}
	most := 2 * o.Nodes // pods; with those there at the start, three on every node
	if c.Sampled, err = measureUpstream(ctx, m, o.Nodes, 0, most, o.Each); err != nil {
		return err
	}
	if c.All, err = measureUpstream(ctx, m, o.Nodes, 100, most, o.Each); err != nil {
		return err
	}
	steady, err := measureBerth(m, o.Nodes, most, o.Each)
	c.Berth = steady.Decision
	r.Compared = append(r.Compared, c)
	if m.Within == 0 {
		r.Sizes = append(r.Sizes, steady)
	}
	return err
}

// byWorkloads compares both sides with increasing numbers of workloads of a kind, including the
// cost of the first pods of each.
func (r *Report) byWorkloads(ctx context.Context, o Options, of driver.Mode) (err error) {
	for _, apps := range o.Workloads {
		o.printProgress("%d workloads, %s: kube-scheduler and Berth, %d nodes", apps, of.Name, o.Nodes)
		of.Apps = apps
		m, most := Mode{Mode: of, Within: diverse}, 2*o.Nodes
		c := Comparison{Mode: of.Name, Apps: apps, Within: diverse}
		if c.Sampled, err = measureUpstream(ctx, &m, o.Nodes, 0, most, o.Each); err != nil {
			return err
		}
		steady, err := measureBerth(&m, o.Nodes, most, o.Each)
		if err != nil {
			return err
		}
		c.Berth = steady.Decision
		r.Workloads = append(r.Workloads, c)
	}
	return nil
}

func (r *Report) comparePreemption(ctx context.Context, o Options) (err error) {
	o.printProgress("preemption: kube-scheduler and Berth, %d full nodes", o.Nodes)
	c := Comparison{Mode: full.Name, Goal: PreemptionGoal}
	most := o.Nodes // one pod on every node
	if c.Sampled, err = preemptUpstream(ctx, o.Nodes, most, 10, o.Each); err != nil {
		return err
	}
	if c.All, err = preemptUpstream(ctx, o.Nodes, most, 100, o.Each); err != nil {
		return err
	}
	c.Berth, err = preemptBerth(o.Nodes, most, o.Each)
	r.Compared = append(r.Compared, c)
	return err
}

func (r *Report) measureAlone(o Options, m *Mode) error {
	if m.Within > 0 {
		return nil // the share of initial costs depends on the number of pods, so other numbers are not comparable
	}
	for _, size := range o.Sizes {
		if size == r.Nodes {
			continue // measured
		}
		o.printProgress("%s: Berth alone, %d nodes", m.Name, size)
		s, err := measureBerth(m, size, 2*size, o.Each)
		if err != nil {
			return err
		}
		r.Sizes = append(r.Sizes, s)
	}
	if o.Large == 0 || m.Bound == 0 {
		return nil
	}
	o.printProgress("%s: Berth alone, %d pods onto %d empty nodes", m.Name, o.Large, o.Large)
	f, err := measureFilling(m, o.Large, o.Large, 60*time.Second)
	if err != nil {
		return err
	}
	r.Filled = append(r.Filled, f)
	r.Sizes = append(r.Sizes, f.Steady)
	return nil
}
