// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// kueuebench runs jobs of three queues of an unmodified Kueue on berth up, without and with the
// admission check of berth-kueue. It reports how long the pods of admitted workloads waited for a
// node, the makespan and the utilization. It writes certificates to /etc/kueue, where Kueue reads
// them, and removes them at the end.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// options selects the measurements.
type options struct {
	nodes, jobs, most int
	runFor, limit     time.Duration
	patience          time.Duration
	checks            []string // empty means both
}

// The values of the flag -checks.
const (
	unchecked = "off"
	checked   = "on"
)

func main() {
	r, o := &driver.Run{}, &options{}
	flag.IntVar(&o.nodes, "nodes", 200, "simulated nodes")
	flag.IntVar(&o.jobs, "jobs", 300, "jobs, created at the same time")
	flag.IntVar(&o.most, "most", 64, "pods of the largest job")
	flag.DurationVar(&o.runFor, "run-for", time.Minute, "time that a pod runs, on average")
	flag.DurationVar(&o.limit, "limit", 15*time.Minute, "longest time of the jobs")
	flag.DurationVar(&o.patience, "patience", 30*time.Second, "time that a workload with the check waits for room before it retries")
	checks := flag.String("checks", "", "off or on; both if empty")
	flag.StringVar(&r.Bin, "bin", "bin", "folder with berth, berth-controlplane and the output of hack/kueue.sh")
	flag.StringVar(&r.Dir, "dir", "", "folder for data and logs, which is left (default: a temporary one, removed at the end)")

	driver.Main("kueuebench", "make bench-kueue builds what it runs.", func(ctx context.Context) (err error) {
		if o.checks, err = driver.Names("-checks", *checks, unchecked, checked); err != nil {
			return err
		}
		if o.most > o.nodes {
			return fmt.Errorf("-most %d: must be at most the number of nodes, as some pods need half a node", o.most)
		}
		remove, err := r.Open()
		defer remove()
		if err != nil {
			return err
		}
		return run(ctx, r, o)
	})
}

// run measures each mode on a cluster of its own.
func run(ctx context.Context, r *driver.Run, o *options) error {
	rows := [][]string{{"check", "workloads that waited a minute for nodes", "longest wait", "longest partial placement",
		"makespan", "utilization", "retries"}}
	load := process.LoadAverage()
	for _, check := range []string{unchecked, checked} {
		if !driver.Chosen(o.checks, check) {
			continue
		}
		one := *r
		one.Dir = filepath.Join(r.Dir, check)
		if err := one.MakeDir(); err != nil {
			return err
		}
		done, err := measure(ctx, &one, o, check == checked)
		if err != nil {
			return fmt.Errorf("check %s: %w", check, err)
		}
		row := slices.Concat([]string{check}, done.cells())
		r.Printf("%v", row)
		rows = append(rows, row)
	}
	driver.Table(os.Stdout, fmt.Sprintf("%d jobs of 1 to %d pods on %d nodes (load average %s)", o.jobs, o.most, o.nodes, load), rows)
	return nil
}

// result holds the results of one mode.
type result struct {
	late             int // workloads with pending pods a minute after their admission
	longest, partial time.Duration
	makespan         time.Duration
	used             float64 // share of the CPU of all nodes, on average
	retries          int
}

func (d *result) cells() []string {
	seconds := func(t time.Duration) string { return fmt.Sprintf("%.1f s", t.Seconds()) }
	return []string{strconv.Itoa(d.late), seconds(d.longest), seconds(d.partial), seconds(d.makespan),
		fmt.Sprintf("%.0f %%", 100*d.used), strconv.Itoa(d.retries)}
}
