// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Bench measures the cost of decisions of kube-scheduler and Berth in one run, and prints tables
// with the goals.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/berth-k8s/berth/test/bench"
	"github.com/berth-k8s/berth/test/bench/driver"
)

func main() {
	o := bench.Options{Progress: os.Stderr}
	modes := flag.String("modes", "", "modes, separated by commas: "+strings.Join(modeNames(), ", ")+" (default all)")
	flag.IntVar(&o.Nodes, "nodes", 5000, "nodes on which both are compared")
	sizes := flag.String("sizes", "100,1000,10000,100000", "numbers of nodes on which Berth is measured alone")
	flag.IntVar(&o.Large, "pods", 1_000_000, "as many pods are placed on as many empty nodes, by Berth alone; 0 to leave it out")
	flag.DurationVar(&o.Each, "each", 1500*time.Millisecond, "how long a measurement takes, about")
	svg := flag.String("svg", "", "file to write a plot over the number of nodes to")
	byApp := flag.String("svg-workloads", "", "file to write a plot over the number of workloads to; measures with 10 to 10,000 of them")

	driver.Main("bench", "Upstream's scheduling core and Berth's side by side.", func(ctx context.Context) error {
		if err := read(&o, *modes, *sizes); err != nil {
			return err
		}
		if *byApp != "" {
			o.Workloads = []int{10, 30, 100, 300, 1000, 3000, 10_000}
		}
		report, err := bench.Run(ctx, o)
		report.Write(os.Stdout)
		if err != nil {
			return err
		}

		if *svg != "" {
			err = report.Plot(*svg)
		}
		if err == nil && *byApp != "" {
			err = report.PlotWorkloads(*byApp)
		}
		return err
	})
}

func modeNames() []string {
	names := []string{"preemption"}
	for _, m := range bench.Modes {
		names = append(names, m.Name)
	}
	return names
}

func read(o *bench.Options, modes, sizes string) (err error) {
	if o.Modes, err = driver.Names("-modes", modes, modeNames()...); err != nil {
		return err
	}

	for size := range strings.SplitSeq(sizes, ",") {
		if size == "" {
			continue
		}
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 {
			return fmt.Errorf("-sizes: %q is no number of nodes", size)
		}
		o.Sizes = append(o.Sizes, n)
	}

	if o.Nodes < 10 || o.Large < 0 {
		return fmt.Errorf("-nodes must be 10 at least, and -pods not negative")
	}
	return nil
}
