// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// WriteCSV writes the placements of a run to MIX-SEED.csv in a folder. For the policy "moves" it
// writes the final placements to MIX-SEED-moves.csv.
func (r *Run) WriteCSV(dir string) error {
	name, last := fmt.Sprintf("%s-%d.csv", r.Mix, r.Seed), slices.Clone(r.Placements)
	if r.Policy == "moves" {
		name = fmt.Sprintf("%s-%d-moves.csv", r.Mix, r.Seed)
	}
	for _, m := range r.Moves {
		last[m.Task] = m.Placement
	}
	var text bytes.Buffer
	fmt.Fprintln(&text, "arrival,pod,node,gpus")
	for i, p := range last {
		var gpus []string
		for _, g := range p.gpus {
			gpus = append(gpus, fmt.Sprintf("%d:%d", g.gpu, g.amount))
		}
		fmt.Fprintf(&text, "%d,%s,%s,%s\n", i+1, p.Task, p.Node, strings.Join(gpus, "|"))
	}
	return os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o644)
}

// Report holds the means of runs.
type Report struct {
	mixes    []string
	policies []string
	sums     map[[2]string]*sum
}

// sum adds up the runs of a policy for one mix or for all mixes.
type sum struct {
	allocated, empty, runs float64
	decisions, seconds     float64
}

// NewReport returns an empty report on the policies.
func NewReport(policies []string) *Report {
	return &Report{policies: policies, sums: map[[2]string]*sum{}}
}

// Add adds a run to the sums of its mix and of all mixes.
func (r *Report) Add(run *Run) {
	if !slices.Contains(r.mixes, run.Mix) {
		r.mixes = append(r.mixes, run.Mix)
	}
	for _, mix := range []string{run.Mix, ""} {
		key := [2]string{mix, run.Policy}
		if r.sums[key] == nil {
			r.sums[key] = &sum{}
		}
		s := r.sums[key]
		s.allocated, s.empty, s.runs = s.allocated+run.Allocated, s.empty+run.Empty, s.runs+1
		s.decisions, s.seconds = s.decisions+float64(run.Decisions), s.seconds+run.Took.Seconds()
	}
}

// Write prints a table by policy: the allocated share of the GPUs for each mix, the share of empty
// nodes, and the decisions per second of CPU time.
func (r *Report) Write(w io.Writer) {
	rows := [][]string{{"GPUs allocated, %"}}
	for _, policy := range r.policies {
		rows[0] = append(rows[0], filepath.Base(policy))
	}
	addRow := func(name, mix, format string, value func(s *sum) float64) {
		row := []string{name}
		for _, policy := range r.policies {
			row = append(row, fmt.Sprintf(format, value(r.sums[[2]string{mix, policy}])))
		}
		rows = append(rows, row)
	}

	allocated := func(s *sum) float64 { return s.allocated / s.runs }
	for _, mix := range r.mixes {
		addRow(mix, mix, "%.2f", allocated)
	}
	if len(r.mixes) > 0 {
		addRow("mean", "", "%.2f", allocated)
		addRow("nodes left empty, %", "", "%.2f", func(s *sum) float64 { return s.empty / s.runs })
		addRow("decisions/s of CPU", "", "%.0f", func(s *sum) float64 { return s.decisions / s.seconds })
	}
	driver.Table(w, "", rows)
}
