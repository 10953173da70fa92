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
	// Modes lists the names of the modes to measure, possibly "preemption"; empty for all modes.
	Modes []string
	// Nodes is the number of nodes at which both schedulers are compared.
	Nodes int
	// Sizes lists the numbers of nodes at which only Berth is measured.
	Sizes []int
	// Workloads lists the numbers of workloads with distinct selectors at which both schedulers are
	// compared.
	Workloads []int
	// Large is the number of nodes that are filled with the same number of pods; 0 skips this
	// measurement.
	Large int
	// Each is the approximate duration of each measurement.
	Each time.Duration
	// Progress receives progress messages.
	Progress io.Writer
}

// Report holds the measurements.
type Report struct {
	Nodes     int
	Compared  []Comparison // by mode; preemption is the last
	Workloads []Comparison
	Sizes     []Steady
	Filled    []Filling
}

// Comparison is the cost of one decision by both schedulers.
type Comparison struct {
	Mode string
	// Apps is the number of workloads; it is set only in Report.Workloads.
	Apps int
	Goal float64
	// Sampled is the cost of kube-scheduler with its default sampling. All is its cost if, like
	// Berth, it evaluates all nodes (or all candidates of a preemption).
	Sampled, All, Berth Cost
}

// Run performs the measurements. After an error it returns partial results.
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
	c := Comparison{Mode: m.Name, Goal: m.Goal}
	most := 2 * o.Nodes // with the initial pods, three pods on every node
	if c.Sampled, err = measureUpstream(ctx, m, o.Nodes, 0, most, o.Each); err != nil {
		return err
	}
	if c.All, err = measureUpstream(ctx, m, o.Nodes, 100, most, o.Each); err != nil {
		return err
	}
	steady, err := measureBerth(m, o.Nodes, most, o.Each)
	c.Berth = steady.Decision
	r.Compared = append(r.Compared, c)
	if !m.diverse {
		r.Sizes = append(r.Sizes, steady)
	}
	return err
}

// byWorkloads compares both schedulers at each number of workloads. The costs include the first
// pods of each workload.
func (r *Report) byWorkloads(ctx context.Context, o Options, of driver.Mode) (err error) {
	for _, apps := range o.Workloads {
		o.printProgress("%d workloads, %s: kube-scheduler and Berth, %d nodes", apps, of.Name, o.Nodes)
		of.Apps = apps
		m, most := Mode{Mode: of, diverse: true}, 2*o.Nodes
		c := Comparison{Mode: of.Name, Apps: apps, Goal: diverseGoal}
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
	if m.diverse {
		return nil // the share of initial costs depends on the number of nodes and pods, so other sizes are not comparable
	}
	for _, size := range o.Sizes {
		if size == r.Nodes {
			continue // already measured
		}
		o.printProgress("%s: Berth alone, %d nodes", m.Name, size)
		s, err := measureBerth(m, size, 2*size, o.Each)
		if err != nil {
			return err
		}
		r.Sizes = append(r.Sizes, s)
	}
	if o.Large == 0 || !m.Fills {
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
