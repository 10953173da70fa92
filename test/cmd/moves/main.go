// moves measures how pods are moved: what a plan of berth rebalance takes on a large cluster and
// what it is worth there, and what a drain costs the pods that have to leave, by kubectl drain and
// by berth drain, beside kube-scheduler and beside Berth's, and for how long workloads are down
// when every node of a cluster is drained in turn.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-k8s/berth/test/internal/plane"
)

// bench is a run.
type bench struct {
	bin, dir string
	began    time.Time

	nodes, pods int      // of the cluster that plans are made for
	plans       []string // names; none: all

	drainNodes, drainPods, drained, full int
	schedulers, drains                   []string

	rollPods    int
	rollTimeout time.Duration
}

const (
	partPlan  = "plan"
	partDrain = "drain"
	partRoll  = "roll"
)

func main() {
	b := &bench{began: time.Now()}
	flag.IntVar(&b.nodes, "nodes", 5000, "nodes of the cluster that plans are made for")
	flag.IntVar(&b.pods, "pods", 50_000, "pods on them")
	plans := flag.String("plans", "", "plans to make, by name, as heal,consolidate; all if empty")
	flag.IntVar(&b.drainNodes, "drain-nodes", 100, "simulated nodes of the cluster that is drained")
	flag.IntVar(&b.drainPods, "drain-pods", 1000, "pods that run on them")
	flag.IntVar(&b.drained, "drained", 10, "nodes that are drained, by one command")
	flag.IntVar(&b.rollPods, "roll-pods", 3000, "pods that run on as many nodes that are all rolled; there is a workload for ten of them")

	flag.DurationVar(&b.rollTimeout, "roll-timeout", 20*time.Second, "after which kubectl drain gives a node up that is rolled")
	flag.IntVar(&b.full, "full", 85, "percent of the CPU of the nodes that are left which the pods ask for")
	schedulers := flag.String("schedulers", "", "upstream or berth, to measure one alone; both if empty")
	drains := flag.String("drains", "", "kubectl or berth, to measure one alone; both if empty")
	parts := flag.String("parts", partPlan+","+partDrain+","+partRoll, "what to measure")
	short := flag.Bool("short", false, "a tenth of everything, to see that it works")
	flag.StringVar(&b.bin, "bin", "", "folder with berth, berth-controlplane and kube-scheduler, in place of building them")
	flag.StringVar(&b.dir, "dir", "", "folder for data, logs and plans, which is left (default: a temporary one, removed at the end)")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: go run ./cmd/moves\n\nBuilds what it runs.\n\n")
		flag.PrintDefaults()
	}

	flag.Parse()
	if *short {
		for _, n := range []*int{&b.nodes, &b.pods, &b.drainNodes, &b.drainPods, &b.drained, &b.rollPods} {
			*n /= 10
		}
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if b.plans, err = splitNames("-plans", *plans, planNames()...); err == nil {
		b.schedulers, err = splitNames("-schedulers", *schedulers, upstream, berth)
	}

	if err == nil {
		b.drains, err = splitNames("-drains", *drains, kubectl, berth)
	}
	var what []string
	if err == nil {
		what, err = splitNames("-parts", *parts, partPlan, partDrain, partRoll)
	}

	if err == nil {
		err = b.runParts(ctx, what)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "moves:", err)
		os.Exit(1)
	}
}

// splitNames splits a list and checks each name; an empty list is all of them.
func splitNames(flag, list string, known ...string) ([]string, error) {
	if list == "" {
		return known, nil
	}
	all := strings.Split(list, ",")
	for _, name := range all {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: no %q; there are %s", flag, name, strings.Join(known, ", "))
		}
	}
	return all, nil
}

func (b *bench) runParts(ctx context.Context, parts []string) (err error) {
	if b.drained < 1 || b.drained >= b.drainNodes || b.nodes < 100 || b.pods < perApp {
		return fmt.Errorf("-drained must be 1 at least and less than -drain-nodes, -nodes 100 at least, and -pods %d", perApp)
	}
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "berth-moves-"); err != nil {
			return err
		}
		defer os.RemoveAll(b.dir)
	} else if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}

	if b.dir, err = filepath.Abs(b.dir); err != nil {
		return err
	}
	if b.bin == "" {
		b.printProgress("building what runs")
		b.bin = b.dir
		if err := plane.Build(b.bin, plane.Berth, plane.ControlPlane, plane.KubeScheduler); err != nil {
			return err
		}
	} else if b.bin, err = filepath.Abs(b.bin); err != nil {
		return err
	}

	for _, part := range parts {
		measure := b.measurePlans
		switch part {
		case partDrain:
			measure = b.measureDrains
		case partRoll:
			measure = b.measureRolls
		}
		dir := filepath.Join(b.dir, part)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := measure(ctx, dir); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}

	return nil
}

func (b *bench) programPath(name string) string { return filepath.Join(b.bin, name) }

// printProgress reports progress.
func (b *bench) printProgress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%5.0fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}
