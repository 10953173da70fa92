// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Benchlive measures kube-scheduler and Berth in one run, one after the other, against a real API
// server, and prints tables with the goals. `make bench-live` builds and runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/bench/livebench"
)

func main() {
	r, o := &driver.Run{}, livebench.Options{}
	flag.StringVar(&r.Bin, "bin", "bin", "folder with etcd, kube-apiserver, kube-scheduler and berth-scheduler or berth")
	flag.StringVar(&r.Dir, "dir", "", "folder for etcd's data and the logs, emptied first (default: a temporary one, removed at the end)")
	flag.IntVar(&o.Nodes, "nodes", 5000, "nodes")
	flag.IntVar(&o.Pods, "pods", 10_000, "pods that wait in each mode but preemption")
	flag.IntVar(&o.Preemptors, "preemptors", 1000, "pods that wait in preemption mode")
	flag.IntVar(&o.Latency, "latency-pods", 500, "pods created one at a time; 0 to leave it out")
	flag.IntVar(&o.Startup, "startup-pods", 0,
		"in place of all else: on simulated nodes, how fast -pods are placed, and how soon this many run that follow "+
			"at 5 a second, as clusterloader2 measures it")

	flag.IntVar(&o.Gang, "gang", 0, "in place of all else: pods of a gang that has to be in one rack of a tenth as many nodes")
	flag.IntVar(&o.GangRounds, "gang-rounds", 5, "gangs of each scheduler, one after another")
	modes := flag.String("modes", "", "modes, separated by commas: "+strings.Join(modeNames(), ", ")+
		" (default all but those with 10,000 apps), or none")
	schedulers := flag.String("schedulers", "", "upstream or berth, to measure one alone (default both)")
	flag.BoolVar(&o.Shadow, "shadow", false,
		"have berth scheduler --shadow look on, and print how the choices compare with the best of all nodes; the "+
			"other figures then include what it takes")

	berth := flag.String("berth", "", "the command that is Berth's scheduler, in the folder of -bin (default: "+
		"berth-scheduler if it is there, else berth scheduler)")
	const usage = "About 15 minutes on two processors; make bench-live builds what it runs."
	driver.Main("benchlive", usage, func(ctx context.Context) (err error) {
		o.Berth = strings.Fields(*berth)
		if o.Modes, err = driver.Names("-modes", *modes, append(modeNames(), "none")...); err != nil {
			return err
		}
		if o.Schedulers, err = driver.SchedulersOf(*schedulers); err != nil {
			return err
		}
		return run(ctx, r, o)
	})
}

func modeNames() (names []string) {
	for i := range livebench.Modes {
		names = append(names, livebench.Modes[i].Name)
	}
	return names
}

func run(ctx context.Context, r *driver.Run, o livebench.Options) error {
	if o.Gang != 0 && (o.Gang < 10 || o.Gang > 2*o.Nodes || o.GangRounds < 1) {
		return fmt.Errorf("-gang must be 10 at least and %d at most, twice -nodes, and -gang-rounds 1", 2*o.Nodes)
	}
	withModes := o.Gang == 0 && o.Startup == 0
	if o.Nodes < 1 || o.Pods < 2 || o.Preemptors < 2 || withModes && o.Preemptors > o.Nodes || o.Latency < 0 || o.Startup < 0 {
		return fmt.Errorf("-nodes must be 1 at least, -pods and -preemptors 2, -latency-pods and -startup-pods 0, and "+
			"-preemptors %d at most as -nodes", o.Preemptors)
	}

	remove, err := r.Open()
	defer remove()
	if err != nil {
		return err
	}
	report, err := livebench.Run(ctx, r, o)
	report.Write(os.Stdout)
	return err
}
