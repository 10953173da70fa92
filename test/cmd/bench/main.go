// Bench measures what decisions cost, kube-scheduler's and Berth's side by side in one run, and
// prints tables with the goals.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/test/bench"
)

func main() {
	var (
		modes = flag.String("modes", "",
			"modes, separated by commas: plain, spread, affinity, anti, taints, shapes, preemption (default all)")
		nodes = flag.Int("nodes", 5000, "nodes on which both are compared")
		sizes = flag.String("sizes", "100,1000,10000,100000", "numbers of nodes on which Berth is measured alone")
		pods  = flag.Int("pods", 1_000_000, "as many pods are placed on as many empty nodes, by Berth alone; 0 to leave it out")
		each  = flag.Duration("each", 1500*time.Millisecond, "how long a measurement takes, about")
		svg   = flag.String("svg", "", "file to write a plot over the number of nodes to")
		byApp = flag.String("svg-workloads", "", "file to write a plot over the number of workloads to; measures with 10 to 10,000 of them")
	)

	flag.Parse()
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	options := bench.Options{Nodes: *nodes, Large: *pods, Each: *each, Progress: os.Stderr}
	if err := read(&options, *modes, *sizes); err != nil {
		fail(err)
	}

	if *byApp != "" {
		options.Workloads = []int{10, 30, 100, 300, 1000, 3000, 10_000}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	report, err := bench.Run(ctx, options)
	report.Write(os.Stdout)
	if err != nil {
		fail(err)
	}

	if *svg != "" {
		if err := report.Plot(*svg); err != nil {
			fail(err)
		}
	}

	if *byApp != "" {
		if err := report.PlotWorkloads(*byApp); err != nil {
			fail(err)
		}
	}
}

func read(o *bench.Options, modes, sizes string) error {
	known := []string{"preemption"}
	for _, m := range bench.Modes {
		known = append(known, m.Name)
	}

	for _, mode := range split(modes) {
		if !slices.Contains(known, mode) {
			return fmt.Errorf("-modes: no mode %q; there are %s", mode, strings.Join(known, ", "))
		}
		o.Modes = append(o.Modes, mode)
	}

	for _, size := range split(sizes) {
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

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}
