// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// guardbench measures evictions by unmodified programs, with and without the eviction guard, under
// kube-scheduler and under Berth's scheduler: every node of a cluster is emptied by kubectl drain,
// by Karpenter, or by the descheduler. It reports the time during which workloads had no ready pod.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/bench/workloads"
	"github.com/berth-k8s/berth/test/internal/process"
)

// options selects the measurements.
type options struct {
	nodes, pods, parallel int
	full                  int64 // percent of the CPU of all nodes that the pods request
	timeout, limit        time.Duration
	schedulers            []driver.Scheduler
	evictors, guards      []string // empty means all
}

// The values of the flag -guards.
const (
	unguarded = "off"
	guarded   = "on"
)

func main() {
	r, o := &driver.Run{}, &options{}
	flag.IntVar(&o.nodes, "nodes", 100, "simulated nodes")
	flag.IntVar(&o.pods, "pods", 3000, "pods that run on them; there is a workload for ten of them")
	flag.Int64Var(&o.full, "full", 60, "percent of the CPU of all nodes that the pods request")
	flag.IntVar(&o.parallel, "parallel", 4, "nodes that are emptied at the same time")
	flag.DurationVar(&o.timeout, "timeout", time.Minute, "after which a node counts as stuck")
	flag.DurationVar(&o.limit, "limit", 0, "time after which no further node is emptied (default: all nodes are emptied)")
	schedulers := flag.String("schedulers", "", "upstream or berth; both if empty")
	evictors := flag.String("evictors", "", "kubectl, karpenter, descheduler or library, separated by commas; all but library if empty")
	guards := flag.String("guards", "", "off or on; both if empty")
	flag.StringVar(&r.Bin, "bin", "bin", "folder with berth, berth-controlplane, kube-scheduler and the output of hack/peers.sh")
	flag.StringVar(&r.Dir, "dir", "", "folder for data and logs, which is left (default: a temporary one, removed at the end)")

	driver.Main("guardbench", "make bench-guard builds what it runs.", func(ctx context.Context) (err error) {
		if o.schedulers, err = driver.SchedulersOf(*schedulers); err != nil {
			return err
		}
		if o.evictors, err = driver.Names("-evictors", *evictors, kubectl, karpenter, descheduler, library); err != nil {
			return err
		}
		if o.guards, err = driver.Names("-guards", *guards, unguarded, guarded); err != nil {
			return err
		}
		if o.nodes < 2 || o.parallel < 1 || o.parallel >= o.nodes || o.pods < workloads.PerWorkload {
			return fmt.Errorf("-nodes must be 2 at least, -parallel less than that, and -pods %d at least", workloads.PerWorkload)
		}
		remove, err := r.Open()
		defer remove()
		if err != nil {
			return err
		}
		return run(ctx, r, o)
	})
}

// result holds the results of one evictor.
type result struct {
	evictor, scheduler, guard string
	stuck, skipped            int
	emptied                   []time.Duration // of the nodes that were not stuck
	effort
	*workloads.Outcome
}

// run measures the evictors, each combination of a scheduler and the guard on a cluster of its own.
func run(ctx context.Context, r *driver.Run, o *options) error {
	var results []*result
	load := process.LoadAverage()
	defer func() { writeResults(results, o, load) }()
	for _, e := range []string{kubectl, karpenter, descheduler, library} {
		for i := range o.schedulers {
			for _, guard := range []string{unguarded, guarded} {
				if !driver.Chosen(o.evictors, e) || e == library && len(o.evictors) == 0 || !driver.Chosen(o.guards, guard) {
					continue
				}
				one := *r
				one.Dir = filepath.Join(r.Dir, e+"-"+o.schedulers[i].Key+"-"+guard)
				if err := one.MakeDir(); err != nil {
					return err
				}
				done, err := measure(ctx, &one, o, &result{evictor: e, scheduler: o.schedulers[i].Name, guard: guard}, &o.schedulers[i])
				if err != nil {
					return fmt.Errorf("%s beside %s, guard %s: %w", e, o.schedulers[i].Name, guard, err)
				}
				results = append(results, done)
				r.Printf("%v", done.cells(o))
			}
		}
	}
	return nil
}

// measure starts a cluster, empties its nodes and returns the result.
func measure(ctx context.Context, r *driver.Run, o *options, done *result, s *driver.Scheduler) (*result, error) {
	b, err := start(ctx, r, o, done.guard == guarded)
	if err != nil {
		return nil, err
	}
	defer b.Stop()
	p, err := b.StartScheduler(s, "--secure-port", "0")
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	empty, err := b.prepare(ctx, done.evictor)
	if err != nil {
		return nil, err
	}

	done.Outcome, err = b.Play(ctx, o.pods/workloads.PerWorkload, func(ctx context.Context, i int) error {
		return b.CreateMixed(ctx, i, int64(o.nodes*nodeCPU)*o.full/100/int64(o.pods))
	}, func(ctx context.Context) error {
		return b.watchEffort(ctx, done, func(ctx context.Context) error { return b.emptyAll(ctx, empty, done) })
	})
	return done, err
}

var header = []string{"evictor", "scheduler", "guard", "workloads without a ready replica", "in all", "longest", "nodes emptied", "stuck nodes", "not tried",
	"took", "a node, on average", "evictions refused", "pods moved", "scales changed",
	"pods more than before, at most", "requests per second", "at most", "controller, at most", "webhook, at most"}

func (d *result) cells(o *options) []string {
	return []string{d.evictor, d.scheduler, d.guard, strconv.Itoa(len(d.Outages)),
		fmt.Sprintf("%.1f s", workloads.Sum(d.Outages).Seconds()), fmt.Sprintf("%.1f s", workloads.Longest(d.Outages).Seconds()),
		strconv.Itoa(len(d.emptied)), strconv.Itoa(d.stuck), strconv.Itoa(d.skipped), fmt.Sprintf("%.0f s", d.Took.Seconds()),
		fmt.Sprintf("%.1f s", workloads.Sum(d.emptied).Seconds()/float64(max(1, len(d.emptied)))),
		strconv.Itoa(d.Refused), fmt.Sprintf("%d (%.2f of all)", d.Moved, float64(d.Moved)/float64(o.pods)), strconv.Itoa(d.Leftover),
		strconv.Itoa(d.added), fmt.Sprintf("%.0f", d.requests/d.Took.Seconds()), fmt.Sprintf("%.0f", d.rate),
		driver.Mebibytes(d.controller), driver.Mebibytes(d.webhook)}
}

func writeResults(results []*result, o *options, load string) {
	rows := [][]string{header}
	for _, d := range results {
		rows = append(rows, d.cells(o))
	}
	driver.Table(os.Stdout, fmt.Sprintf("%d nodes emptied, %d at a time, %d pods of %d workloads (load average %s)",
		o.nodes, o.parallel, o.pods, o.pods/workloads.PerWorkload, load), rows)
}
