// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/test/bench/driver"
)

// Report holds a run's results so far.
type Report struct {
	Nodes     int
	Began     time.Time
	Load      string // load average before the run
	Took      time.Duration
	Ceiling   float64 // bindings per second without decisions
	Latencies []Latency
	Modes     []*ModeResult
	Startups  []Startup
	Gangs     []Gang
}

// ModeResult holds the rounds of a mode, one round per scheduler.
type ModeResult struct {
	Mode   *Mode
	Rounds []Round
}

// Goals of all modes without a separate goal: the ratio of Berth's usage to kube-scheduler's.
const (
	cpuGoal    = 0.1
	memoryGoal = 0.5
)

func (m *Mode) memoryGoal() float64 { return cmp.Or(m.memory, memoryGoal) }

// Write prints the report as Markdown tables.
func (r *Report) Write(w io.Writer) {
	r.writeModes(w)
	r.writeGoals(w)
	r.writeLatencies(w)
	r.writeShadows(w)
	r.writeStartups(w)
	r.writeGangs(w)
	fmt.Fprintf(w, "\n%s, %d cores, load average before %s; took %.0f s. One kube-apiserver and one etcd, kube-scheduler %s\n",
		r.Began.Format("2006-01-02 15:04"), runtime.NumCPU(), r.Load, r.Took.Seconds(), rules.Kubernetes)
	fmt.Fprint(w, "with its defaults but for clientConnection.qps and burst (100,000 for both) and leader election (off for both).\n")
}

func (r *Report) writeModes(w io.Writer) {
	if len(r.Modes) == 0 {
		return
	}
	lines := [][]string{{"mode", "scheduler", "pods", "bound", "pods/s", "first after", "CPU a pod", "peak memory", "events", "victims"}}

	for _, m := range r.Modes {
		for _, round := range m.Rounds {
			victims := ""
			if m.Mode.preempts {
				victims = driver.Thousands(round.Victims)
			}
			lines = append(lines, []string{m.Mode.Name, round.Scheduler, driver.Thousands(round.Pods),
				driver.Thousands(round.Bound) + gaveUp(round),
				fmt.Sprintf("%.0f", round.PerSecond()), fmt.Sprintf("%.1f s", round.First.Seconds()), driver.Short(round.CPUPerPod()),
				driver.Mebibytes(round.Usage.Peak), driver.Thousands(round.Events), victims})
		}
	}

	driver.Table(w, fmt.Sprintf("Live: %s nodes", driver.Thousands(r.Nodes)), lines)
	if r.Ceiling > 0 {
		fmt.Fprintf(w, "\nBindings alone, %d at a time and nobody deciding: %s/s.\n", driver.Writers, driver.Thousands(int(r.Ceiling)))
	}
}

func gaveUp(round Round) string {
	if round.Bound < round.Pods {
		return " (given up)"
	}
	return ""
}

func (r *Report) writeGoals(w io.Writer) {
	lines := [][]string{{"mode", "times the pods/s", "goal", "of the bindings that the API server takes", "share of the CPU a pod", "goal",
		"share of the memory", "goal"}}
	for _, m := range r.Modes {
		if len(m.Rounds) != 2 {
			continue
		}
		upstream, berth := &m.Rounds[0], &m.Rounds[1]
		faster := berth.PerSecond() / max(upstream.PerSecond(), 1e-9)
		cpu := float64(berth.CPUPerPod()) / float64(max(upstream.CPUPerPod(), 1))
		memory := float64(berth.Usage.Peak) / float64(max(upstream.Usage.Peak, 1))
		speed, goal, ceiling := fmt.Sprintf("%.1f", faster), "", ""
		if m.Mode.Times > 0 {
			speed, goal = speed+driver.Mark(faster >= m.Mode.Times), fmt.Sprintf("%.0f", m.Mode.Times)
		}
		if r.Ceiling > 0 && !m.Mode.preempts {
			ceiling = fmt.Sprintf("%.0f %%", 100*berth.PerSecond()/r.Ceiling)
		}
		lines = append(lines, []string{m.Mode.Name, speed, goal, ceiling,
			fmt.Sprintf("%.2f%s", cpu, driver.Mark(cpu <= cpuGoal)), fmt.Sprint(cpuGoal),
			fmt.Sprintf("%.2f%s", memory, driver.Mark(memory <= m.Mode.memoryGoal())), fmt.Sprint(m.Mode.memoryGoal())})
	}

	driver.Table(w, "Live: Berth beside kube-scheduler", lines)
}

func (r *Report) writeLatencies(w io.Writer) {
	lines := [][]string{{"scheduler", "pods", "p50", "p90", "p99", "slowest"}}
	for i := range r.Latencies {
		sorted := r.Latencies[i].Sorted
		at := func(q float64) string { return driver.Short(driver.Quantile(sorted, q)) }
		p99 := at(0.99)
		if i > 0 {
			p99 += driver.Mark(driver.Quantile(sorted, 0.99) <= driver.Quantile(r.Latencies[0].Sorted, 0.99))
		}
		lines = append(lines, []string{r.Latencies[i].Scheduler, driver.Thousands(len(sorted)), at(0.5), at(0.9), p99, at(1)})
	}
	driver.Table(w, fmt.Sprintf("Live: one pod at a time, %s nodes, created to bound", driver.Thousands(r.Nodes)), lines)
}
