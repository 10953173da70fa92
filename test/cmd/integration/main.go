// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// integration runs upstream's own integration tests of scheduling with Berth replacing
// kube-scheduler and kube-controller-manager's node controllers. On request, it runs them with the
// replaced components as well. The tests come from the module cache and are patched while they are
// built (see package patch). A failing test that is not listed in known.txt fails the run.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/berth-k8s/berth/test/inplace/build"
)

// packages lists the packages to run, below k8s.io/kubernetes/test/integration.
var packages = []string{
	"scheduler", "scheduler/bind", "scheduler/eventhandler", "scheduler/extender", "scheduler/filters", "scheduler/nominated_node_name",
	"scheduler/plugins", "scheduler/preemption", "scheduler/preemption/misc",
	"scheduler/preemption/nominatednodename", "scheduler/preemption/podgroup",
	"scheduler/queueing", "scheduler/prequeueinghint", "scheduler/scoring", "scheduler/serving",
	"scheduler/taint", "scheduler/batch", "scheduler/podgroup", "scheduler/podgroup/queueing",
	"scheduler/podgroup/topology_aware_scheduling",
	"node", "volumescheduling", "dra/default", "dra/ga", "dra/all",
}

// plugins lists the packages with tests of sigs.k8s.io/scheduler-plugins. They run only on request,
// because they need modules that no other code of this repository downloads.
var plugins = []string{build.PluginTests + "coscheduling", build.PluginTests + "capacityscheduling",
	build.PluginTests + "noderesourcetopology"}

func main() {
	r := &run{out: os.Stdout}
	only := flag.String("packages", strings.Join(packages, ","), "which of them, with commas between, or of\n"+strings.Join(plugins, ","))
	flag.StringVar(&r.tests, "run", "", "which tests, as for go test")
	flag.StringVar(&r.logs, "logs", "", "folder for what the tests print")
	flag.BoolVar(&r.both, "upstream", false, "run upstream's scheduler and controllers, too")
	flag.IntVar(&r.times, "times", 1, "how often")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: go run ./cmd/integration\n\nCompiles upstream's tests; a quarter of an hour or "+
			"more on two processors.\n\n")
		flag.PrintDefaults()
	}

	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r.packages = strings.Split(*only, ",")
	if err := r.runAll(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		os.Exit(1)
	}
}
