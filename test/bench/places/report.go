package places

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteCSV writes the placements of a run to MIX-SEED.csv in a folder. Those of a run with moves
// are as they are in the end, in MIX-SEED-moves.csv.
func (r *Run) WriteCSV(dir string) (err error) {
	name, last := fmt.Sprintf("%s-%d.csv", r.Mix, r.Seed), slices.Clone(r.Placements)
	if r.Policy == "moves" {
		name = fmt.Sprintf("%s-%d-moves.csv", r.Mix, r.Seed)
	}
	for _, m := range r.Moves {
		last[m.Task] = m.Placement
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}

	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()

	w := bufio.NewWriter(f)
	fmt.Fprintln(w, "arrival,pod,node,gpus")
	for i, p := range last {
		var gpus []string
		for _, g := range p.gpus {
			gpus = append(gpus, fmt.Sprintf("%d:%d", g.gpu, g.amount))
		}
		fmt.Fprintf(w, "%d,%s,%s,%s\n", i+1, p.Task, p.Node, strings.Join(gpus, "|"))
	}

	return w.Flush()
}

// Report is the means of runs.
type Report struct {
	mixes    []string
	policies []string
	sums     map[[2]string]*mean
}

type mean struct {
	allocated float64
	empty     float64
	runs      int
	decisions int
	took      time.Duration
}

// NewReport returns a report on these policies without runs.
func NewReport(policies []string) *Report {
	return &Report{policies: policies, sums: map[[2]string]*mean{}}
}

// Add counts a run.
func (r *Report) Add(run *Run) {
	if len(r.mixes) == 0 || r.mixes[len(r.mixes)-1] != run.Mix {
		r.mixes = append(r.mixes, run.Mix)
	}
	for _, mix := range []string{run.Mix, ""} {
		key := [2]string{mix, run.Policy}
		if r.sums[key] == nil {
			r.sums[key] = &mean{}
		}
		m := r.sums[key]
		m.allocated += run.Allocated
		m.empty += run.Empty
		m.runs++
		m.decisions += run.Decisions
		m.took += run.Took
	}
}

// Write prints the allocated share of the GPUs by mix, and decisions a second.
func (r *Report) Write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(m *mean) string, mix string) {
		fmt.Fprintf(t, "%s\t", name)
		for _, policy := range r.policies {
			if m := r.sums[[2]string{mix, policy}]; m != nil {
				fmt.Fprint(t, cell(m))
			}
			fmt.Fprint(t, "\t")
		}
		fmt.Fprintln(t)
	}

	allocated := func(m *mean) string { return fmt.Sprintf("%.2f", m.allocated/float64(m.runs)) }
	names := make([]string, len(r.policies))
	for i, policy := range r.policies {
		names[i] = filepath.Base(policy)
	}
	fmt.Fprintf(t, "GPUs allocated, %%\t%s\t\n", strings.Join(names, "\t"))
	for _, mix := range r.mixes {
		row(mix, allocated, mix)
	}

	row("mean", allocated, "")
	row("nodes left empty, %", func(m *mean) string { return fmt.Sprintf("%.2f", m.empty/float64(m.runs)) }, "")
	row("decisions/s of CPU", func(m *mean) string { return fmt.Sprintf("%.0f", float64(m.decisions)/m.took.Seconds()) }, "")
	return t.Flush()
}
