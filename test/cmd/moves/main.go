// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// moves measures how pods are moved. It measures the cost and the benefit of the plans of berth
// rebalance on a large cluster; the effect of kubectl drain and of berth drain on the evicted pods,
// under kube-scheduler and under Berth's scheduler; and the downtime of workloads while every node
// of a cluster is drained in turn.
package main

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// options selects the measurements.
type options struct {
	nodes, pods int      // size of the planned cluster
	plans       []string // names; empty means all

	drainNodes, drainPods, drained, full int
	schedulers                           []driver.Scheduler
	drains                               []string // empty means both

	rollPods    int
	rollTimeout time.Duration
}

// parts lists the measurements, each on a separate cluster.
var parts = []struct {
	name    string
	measure func(ctx context.Context, r *driver.Run, o *options) error
}{{"plan", measurePlans}, {"drain", measureDrains}, {"roll", measureRolls}}

func main() {
	r, o := &driver.Run{}, &options{}
	flag.IntVar(&o.nodes, "nodes", 5000, "nodes of the cluster that plans are made for")
	flag.IntVar(&o.pods, "pods", 50_000, "pods on them")
	plans := flag.String("plans", "", "plans to make, by name, as heal,consolidate; all if empty")
	flag.IntVar(&o.drainNodes, "drain-nodes", 100, "simulated nodes of the cluster that is drained")
	flag.IntVar(&o.drainPods, "drain-pods", 1000, "pods that run on them")
	flag.IntVar(&o.drained, "drained", 10, "nodes that are drained, by one command")
	flag.IntVar(&o.rollPods, "roll-pods", 3000, "pods that run on as many nodes that are all rolled; there is a workload for ten of them")

	flag.DurationVar(&o.rollTimeout, "roll-timeout", 20*time.Second, "after which kubectl drain gives a node up that is rolled")
	flag.IntVar(&o.full, "full", 85, "percent of the CPU of the nodes that are left which the pods ask for")
	schedulers := flag.String("schedulers", "", "upstream or berth, to measure one alone; both if empty")
	drains := flag.String("drains", "", "kubectl or berth, to measure one alone; both if empty")
	names := flag.String("parts", "plan,drain,roll", "what to measure")
	short := flag.Bool("short", false, "a tenth of everything, to see that it works")
	flag.StringVar(&r.Bin, "bin", "", "folder with berth, berth-controlplane and kube-scheduler, in place of building them")
	flag.StringVar(&r.Dir, "dir", "", "folder for data, logs and plans, which is left (default: a temporary one, removed at the end)")

	driver.Main("moves", "Builds what it runs.", func(ctx context.Context) (err error) {
		if *short {
			for _, n := range []*int{&o.nodes, &o.pods, &o.drainNodes, &o.drainPods, &o.drained, &o.rollPods} {
				*n /= 10
			}
		}
		if o.plans, err = driver.Names("-plans", *plans, planNames()...); err != nil {
			return err
		}
		if o.schedulers, err = driver.SchedulersOf(*schedulers); err != nil {
			return err
		}
		if o.drains, err = driver.Names("-drains", *drains, kubectl, berth); err != nil {
			return err
		}
		chosen, err := driver.Names("-parts", *names, parts[0].name, parts[1].name, parts[2].name)
		if err != nil {
			return err
		}
		return run(ctx, r, o, chosen)
	})
}

func run(ctx context.Context, r *driver.Run, o *options, chosen []string) error {
	if o.drained < 1 || o.drained >= o.drainNodes || o.nodes < 100 || o.pods < perApp {
		return fmt.Errorf("-drained must be 1 at least and less than -drain-nodes, -nodes 100 at least, and -pods %d", perApp)
	}
	remove, err := r.Open(driver.Berth, driver.ControlPlane, driver.KubeScheduler)
	defer remove()
	if err != nil {
		return err
	}

	for _, part := range parts {
		if !driver.Chosen(chosen, part.name) {
			continue
		}
		one := *r
		one.Dir = filepath.Join(r.Dir, part.name)
		if err := one.MakeDir(); err != nil {
			return err
		}
		if err := part.measure(ctx, &one, o); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
