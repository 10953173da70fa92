// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Write prints the report as Markdown tables.
func (r *Report) Write(w io.Writer) {
	r.writeCompared(w)
	r.writeWorkloads(w)
	r.writeSizes(w)
	r.writeFilled(w)
}

func (r *Report) writeCompared(w io.Writer) {
	lines := [][]string{{"mode", "kube-scheduler, sampled", "kube-scheduler, all nodes", "Berth, all nodes, one core",
		"times faster than sampled", "goal",
		"times faster than all", "CPU sampled", "CPU Berth", "times less CPU"}}

	for _, c := range r.Compared {
		ratio := ratioOf(c.Sampled.Wall, c.Berth.Wall)
		lines = append(lines, []string{c.Mode, driver.Short(c.Sampled.Wall), driver.Short(c.All.Wall), driver.Short(c.Berth.Wall),
			fmt.Sprintf("%.0f%s", ratio, driver.Mark(ratio >= c.Goal)), fmt.Sprintf("%.0f", c.Goal), fmt.Sprintf("%.0f", ratioOf(c.All.Wall, c.Berth.Wall)),
			driver.Short(c.Sampled.CPU), driver.Short(c.Berth.CPU), fmt.Sprintf("%.0f", ratioOf(c.Sampled.CPU, c.Berth.CPU))})
	}

	driver.Table(w, fmt.Sprintf("One decision, %s nodes, from a pod to its node, without API", driver.Thousands(r.Nodes)), lines)
	if slices.ContainsFunc(r.Compared, func(c Comparison) bool { return c.Mode == full.Name }) {
		fmt.Fprintln(w, "\nPreemption: on full nodes with 10 lower pods each; sampled is a tenth of the candidates, "+
			"all is every candidate.")
	}
}

func (r *Report) writeWorkloads(w io.Writer) {
	lines := [][]string{{"mode", "workloads", "kube-scheduler, sampled", "Berth, all nodes", "times less", "goal"}}
	for _, c := range r.Workloads {
		ratio := ratioOf(c.Sampled.CPU, c.Berth.CPU)
		lines = append(lines, []string{c.Mode, driver.Thousands(c.Apps), driver.Short(c.Sampled.CPU), driver.Short(c.Berth.CPU),
			fmt.Sprintf("%.0f%s", ratio, driver.Mark(ratio >= c.Goal)), fmt.Sprintf("%.0f", c.Goal)})
	}
	driver.Table(w, fmt.Sprintf("One decision by the number of workloads, %s nodes (CPU time)", driver.Thousands(r.Nodes)), lines)
}

func (r *Report) writeSizes(w io.Writer) {
	cost := map[string]map[int]time.Duration{}
	var sizes []int
	var modes []string
	for _, s := range r.Sizes {
		sizes = append(sizes, s.Nodes)
		if cost[s.Mode] == nil {
			cost[s.Mode] = map[int]time.Duration{}
			modes = append(modes, s.Mode)
		}
		cost[s.Mode][s.Nodes] = s.Decision.CPU // on one core CPU time nearly equals wall time, and other load disturbs it less
	}
	slices.Sort(sizes)
	columns := slices.Compact(sizes)
	if len(columns) < 2 {
		return
	}

	header := []string{"mode"}
	for _, size := range columns {
		header = append(header, driver.Thousands(size)+" nodes")
	}
	lines := [][]string{append(header, "largest to "+driver.Thousands(r.Nodes), "goal")}
	for _, mode := range modes {
		row := []string{mode}
		for _, size := range columns {
			if one, ok := cost[mode][size]; ok {
				row = append(row, driver.Short(one))
			} else {
				row = append(row, "")
			}
		}
		largest := slices.Max(slices.Collect(maps.Keys(cost[mode])))
		ratio := ratioOf(cost[mode][largest], cost[mode][r.Nodes])
		lines = append(lines, append(row, fmt.Sprintf("%.1f%s", ratio, driver.Mark(ratio <= growthGoal)), strconv.Itoa(growthGoal)))
	}
	driver.Table(w, "Berth alone, one decision, one core (CPU time)", lines)
}

func (r *Report) writeFilled(w io.Writer) {
	lines := [][]string{{"mode", "nodes", "pods placed", "took", "CPU", "of it first of each kind",
		"CPU a pod to a decision with " + driver.Thousands(r.Nodes), "goal",
		"bytes a node", "goal", "bytes a pod", "goal"}}

	for _, f := range r.Filled {
		took := fmt.Sprintf("%.1f s", f.Took.Wall.Seconds())
		ratio := ratioOf(f.Took.CPU/time.Duration(max(f.Pods, 1)), r.decisionOf(f.Mode))
		if !f.Complete {
			took += " (given up)"
		}
		lines = append(lines, []string{f.Mode, driver.Thousands(f.Nodes), driver.Thousands(f.Pods), took,
			driver.Short(f.Took.CPU), driver.Short(f.First.CPU),
			fmt.Sprintf("%.1f%s", ratio, driver.Mark(f.Complete && ratio <= fillGoal)), strconv.Itoa(fillGoal),
			fmt.Sprintf("%d%s", f.NodeBytes, driver.Mark(f.NodeBytes <= 1024)), "1024",
			fmt.Sprintf("%d%s", f.PodBytes, driver.Mark(f.PodBytes <= 1024)), "1024"})
	}

	driver.Table(w, "Berth alone, as many pods onto as many empty nodes", lines)
}

// decisionOf returns the CPU time of a decision by Berth with r.Nodes nodes.
func (r *Report) decisionOf(mode string) time.Duration {
	i := slices.IndexFunc(r.Sizes, func(s Steady) bool { return s.Mode == mode && s.Nodes == r.Nodes })
	if i < 0 {
		return 0
	}
	return r.Sizes[i].Decision.CPU
}

func ratioOf(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }
