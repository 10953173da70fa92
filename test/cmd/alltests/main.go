// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// alltests runs the tests of all modules, like `make test`. Tests that only compute run
// concurrently with tests of live clusters, which mostly wait. alltests prints the running tests
// and, at the end, the times of each part and of the slowest tests. Arguments select parts:
//
//	cd test && go run ./cmd/alltests -root .. cores fuzz
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// part is a group of commands whose time is printed at the end.
type part struct {
	name string
	does string
	// lane orders the parts: the parts of a lane run one after the other. Lanes other than before
	// run in parallel.
	lane     lane
	atOnce   int // number of commands run concurrently
	commands func(options) ([]command, error)
}

type lane int

const (
	// before runs before all other parts.
	before lane = iota
	// computing is for tests that only compute. They run at a slightly lower priority than live
	// tests, which mostly wait and mistake a busy machine for a slow cluster.
	computing
	live
)

type options struct {
	root     string
	fuzztime string
	wide     bool // fuzzers use the coverage of all packages
	long     bool // live tests run that are skipped in short mode
}

// command is a program run by a part. If events is set, the program prints the output of `go test
// -json`.
type command struct {
	folder      string
	words       []string
	environment []string
	events      bool
	remembered  bool // packages that passed do not run again until the tree changes
}

var parts = []part{
	{"build", "the binaries that live tests run", before, 1, func(options) ([]command, error) {
		return []command{{words: []string{"make", "--no-print-directory", "build", "build-node"}}}, nil
	}},
	{"cores", "the cores, the shells and the commands", computing, 2, func(options) ([]command, error) {
		// The packages that take longest start first, and the small modules run with them, so that
		// no long package runs alone on one core at the end.
		return []command{
			goTest(".", "-timeout", "2h", "./internal/engine/cycle", "./internal/controller/rebalance", "./cmd/berth",
				"./internal/engine/decide", "./internal/inspect/provision", "./internal/admission",
				"./internal/scheduler/runner", "./internal/controller/eviction", "./..."),
			goTest("deploy/pack", anew, "./..."),
			goTest("integrations", anew, "./..."),
		}, nil
	}},
	{"fuzz", "every parser, with input made for the moment", computing, 2, listFuzzers},
	{"controlplane", "the API server, etcd and the workload controllers", live, 1, func(options) ([]command, error) {
		return []command{goTest("controlplane", anew, "-p", "2", "-timeout", "40m", "./...")}, nil
	}},
	{"live", "against upstream's code and on live clusters", live, 1, func(o options) ([]command, error) {
		// The packages that take longest start first here as well.
		return []command{goTest("test", fmt.Sprintf("-short=%t", !o.long), anew, "-p", "3", "-timeout", "40m",
			"./e2e_ui", "./e2e", "./e2e_explain", "./e2e_deploy", "./e2e_node", "./conformance", "./soak", "./e2e_eviction", "./...")}, nil
	}},
}

// anew makes go test ignore the cached results of a nested module. The cache does not detect
// changes outside of the module, such as changes to programs run by tests and to documents with
// tested examples. The type passed does.
const anew = "-count=1"

// goTest returns a `go test` command in a module's folder. It leaves go vet to `make lint`.
func goTest(folder string, arguments ...string) command {
	return command{folder: folder, words: append([]string{"go", "test", "-json", "-vet=off"}, arguments...), events: true, remembered: slices.Contains(arguments, anew)}
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", "..", "the tree whose tests run")
	flag.StringVar(&o.fuzztime, "fuzztime", "1000x", "how long each fuzzer runs, as go test takes it")
	flag.BoolVar(&o.wide, "wide", false, "guide fuzzers by the code of all packages, not of their own alone")
	flag.BoolVar(&o.long, "long", false, "also run the live tests that are too slow for every change")
	flag.Parse()
	chosen := flag.Args()

	for _, name := range chosen {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			fmt.Fprintf(os.Stderr, "alltests: %q: no such part\n", name)
			os.Exit(2)
		}
	}

	root, err := filepath.Abs(o.root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "alltests:", err)
		os.Exit(1)
	}

	o.root = root
	os.Setenv("BERTH_BIN", filepath.Join(root, "bin"))
	if !runParts(o, chosen) {
		os.Exit(1)
	}
}

// runParts runs the chosen parts, by default all, and reports the results.
func runParts(o options, chosen []string) bool {
	r := newReport(os.Stdout, time.Now)
	r.passed = readPassed(o)
	// Ctrl-C also interrupts the tests, which end their processes. This process ignores it, in
	// order to report their output.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	// SIGTERM ends the run and reports the times spent so far.
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		r.printSummary()
		os.Exit(1)
	}()
	quiet := make(chan struct{})
	defer close(quiet)
	go r.reportRunning(quiet)

	lanes := make(map[lane][]part)
	for _, p := range parts {
		if len(chosen) == 0 || slices.Contains(chosen, p.name) {
			lanes[p.lane] = append(lanes[p.lane], p)
		}
	}
	runLane := func(of lane) {
		for _, p := range lanes[of] {
			if len(interrupted) == 0 {
				r.runPart(p, o)
			}
		}
	}
	runLane(before)
	if !r.hasFailed() {
		var all sync.WaitGroup
		for _, of := range []lane{computing, live} {
			all.Go(func() { runLane(of) })
		}
		all.Wait()
	}
	r.printSummary()
	return !r.hasFailed() && len(interrupted) == 0
}

// shortPath returns a package's path relative to this tree.
func shortPath(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/berth-k8s/berth/")
}
