package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/berth-k8s/berth/test/bench/table"
)

// Write prints the report as Markdown tables.
func (r *Report) Write(w io.Writer) {
	r.writeCompared(w)
	r.writeWorkloads(w)
	r.writeSizes(w)
	r.writeFilled(w)
}

func (r *Report) writeCompared(w io.Writer) {
	rows := slices.Clone(r.Compared)
	if r.Preemption != nil {
		rows = append(rows, *r.Preemption)
	}

	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n## One decision, %s nodes, from a pod to its node, without API\n\n", formatThousands(r.Nodes))
	lines := [][]string{{"mode", "kube-scheduler, sampled", "kube-scheduler, all nodes", "Berth, all nodes, one core",
		"times faster than sampled", "goal",
		"times faster than all", "CPU sampled", "CPU Berth", "times less CPU"}}

	for _, c := range rows {
		ratio := ratioOf(c.Sampled.Wall, c.Berth.Wall)
		reached, goal := table.Mark(ratio >= c.Goal), fmt.Sprintf("%.0f", c.Goal)
		if c.Within > 0 {
			reached, goal = table.Mark(c.Berth.Wall <= c.Within), "Berth within "+formatShort(c.Within)
		}
		lines = append(lines, []string{c.Mode, formatShort(c.Sampled.Wall), formatShort(c.All.Wall), formatShort(c.Berth.Wall),
			fmt.Sprintf("%.0f%s", ratio, reached), goal, fmt.Sprintf("%.0f", ratioOf(c.All.Wall, c.Berth.Wall)),
			formatShort(c.Sampled.CPU), formatShort(c.Berth.CPU), fmt.Sprintf("%.0f", ratioOf(c.Sampled.CPU, c.Berth.CPU))})
	}

	table.Write(w, lines)
	if r.Preemption != nil {
		fmt.Fprintln(w, "\nPreemption: on full nodes with 10 lower pods each; sampled is a tenth of the candidates, "+
			"all is every candidate.")
	}
}

func (r *Report) writeWorkloads(w io.Writer) {
	if len(r.Workloads) == 0 {
		return
	}
	fmt.Fprintf(w, "\n## One decision by the number of workloads, %s nodes (CPU time)\n\n", formatThousands(r.Nodes))
	lines := [][]string{{"mode", "workloads", "kube-scheduler, sampled", "Berth, all nodes", "goal", "times less"}}
	for _, c := range r.Workloads {
		lines = append(lines, []string{c.Mode, formatThousands(c.Apps), formatShort(c.Sampled.CPU), formatShort(c.Berth.CPU) +
			table.Mark(c.Berth.CPU <= c.Within),
			formatShort(c.Within), fmt.Sprintf("%.0f", ratioOf(c.Sampled.CPU, c.Berth.CPU))})
	}
	table.Write(w, lines)
}

func (r *Report) writeSizes(w io.Writer) {
	sizes := map[int]bool{}
	cost := map[string]map[int]time.Duration{}
	var modes []string
	for _, s := range r.Sizes {
		sizes[s.Nodes] = true
		if cost[s.Mode] == nil {
			cost[s.Mode] = map[int]time.Duration{}
			modes = append(modes, s.Mode)
		}
		cost[s.Mode][s.Nodes] = s.Decision.CPU // on one core as good as the time that passes, and hardly disturbed by others
	}
	if len(sizes) < 2 {
		return
	}
	columns := sortedKeys(sizes)
	header := []string{"mode"}
	for _, size := range columns {
		header = append(header, formatThousands(size)+" nodes")
	}
	lines := [][]string{append(header, "largest to "+formatThousands(r.Nodes), "goal")}
	for _, mode := range modes {
		row := []string{mode}
		for _, size := range columns {
			if one, ok := cost[mode][size]; ok {
				row = append(row, formatShort(one))
			} else {
				row = append(row, "")
			}
		}
		largest := slices.Max(slices.Collect(maps.Keys(cost[mode])))
		ratio := ratioOf(cost[mode][largest], cost[mode][r.Nodes])
		lines = append(lines, append(row, fmt.Sprintf("%.1f%s", ratio, table.Mark(ratio <= 2)), "2"))
	}
	fmt.Fprint(w, "\n## Berth alone, one decision, one core (CPU time)\n\n")
	table.Write(w, lines)
}

func (r *Report) writeFilled(w io.Writer) {
	if len(r.Filled) == 0 {
		return
	}
	fmt.Fprintf(w, "\n## Berth alone, as many pods onto as many empty nodes\n\n")
	lines := [][]string{{"mode", "nodes", "pods placed", "took", "goal", "CPU", "of it first of each kind",
		"bytes a node", "goal", "bytes a pod", "goal"}}

	for _, f := range r.Filled {
		bound := goalOf(f.Mode).Bound * float64(f.Nodes) / 1e6
		took := fmt.Sprintf("%.1f s%s", f.Took.Wall.Seconds(), table.Mark(f.Complete && f.Took.Wall.Seconds() <= bound))
		if !f.Complete {
			took += " (given up)"
		}
		lines = append(lines, []string{f.Mode, formatThousands(f.Nodes), formatThousands(f.Pods), took,
			fmt.Sprintf("%.4g s", bound), formatShort(f.Took.CPU), formatShort(f.First.CPU),
			fmt.Sprintf("%d%s", f.NodeBytes, table.Mark(f.NodeBytes <= 1024)), "1024",
			fmt.Sprintf("%d%s", f.PodBytes, table.Mark(f.PodBytes <= 1024)), "1024"})
	}

	table.Write(w, lines)
}

func goalOf(mode string) Mode {
	for _, m := range Modes {
		if m.Name == mode {
			return m
		}
	}
	return Mode{}
}

func ratioOf(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }

// formatShort shows three digits and the unit.
func formatShort(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return fmt.Sprintf("%d ns", d.Nanoseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%s µs", formatThree(float64(d.Nanoseconds())/1e3))
	case d < 10*time.Second:
		return fmt.Sprintf("%s ms", formatThree(float64(d.Nanoseconds())/1e6))
	}
	return fmt.Sprintf("%s s", formatThree(d.Seconds()))
}

func formatThree(v float64) string {
	if v >= 100 {
		return formatThousands(int(v + 0.5))
	}
	return fmt.Sprintf("%.3g", v)
}

func formatThousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func sortedKeys(set map[int]bool) (list []int) {
	for n := range set {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}
