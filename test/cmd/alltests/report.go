// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// report collects the results of all commands, which use it concurrently.
type report struct {
	now    func() time.Time
	passed *passed

	mu  sync.Mutex
	out io.Writer
	// said is the time of the last output.
	said     time.Time
	packages map[string]*testedPackage
	tests    []result
	parts    []result
	failures []string
	skipped  []string
}

// testedPackage is a package with running tests.
type testedPackage struct {
	since time.Time
	// running lists the tests in progress, without subtests.
	running map[string]time.Time
	// printed holds the output of each test until the test has passed. The key "" holds the output
	// of the package itself.
	printed map[string][]string
	cached  bool
}

// result is the duration of a run.
type result struct {
	name      string
	took, cpu time.Duration
}

func newReport(out io.Writer, now func() time.Time) *report {
	return &report{now: now, passed: &passed{}, out: out, said: now(), packages: make(map[string]*testedPackage)}
}

func (r *report) hasFailed() bool { return r.countFailures() > 0 }

func (r *report) countFailures() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures)
}

// runPart runs the commands of a part.
func (r *report) runPart(p part, o options) {
	begin := r.now()
	r.printLine("==> %s: %s", p.name, p.does)
	commands, err := p.commands(o)
	if err != nil {
		r.addFailure(p.name, err.Error())
	}

	var cpu atomic.Int64
	var running errgroup.Group
	running.SetLimit(p.atOnce)
	for _, c := range commands {
		running.Go(func() error {
			cpu.Add(int64(r.runCommand(p, c, o)))
			return nil
		})
	}

	running.Wait()
	r.mu.Lock()
	r.parts = append(r.parts, result{p.name, r.now().Sub(begin), time.Duration(cpu.Load())})
	r.mu.Unlock()
	r.printLine("==> %s: done after %s", p.name, formatSeconds(r.now().Sub(begin)))
}

// runCommand runs one program and returns the CPU time of the program and its children.
func (r *report) runCommand(p part, c command, o options) time.Duration {
	if c.remembered {
		var before []string
		var err error
		if c, before, err = r.passed.without(c, o.root); err != nil {
			r.addFailure(p.name, err.Error())
			return 0
		}
		for _, name := range before {
			r.printLine("ok   %s, as before", shortPath(name))
		}
		if len(c.words) == 0 {
			return 0
		}
	}
	words := c.words
	if p.lane == computing {
		// A larger number nearly stops these tests while other programs use all processors.
		words = append([]string{"nice", "-n", "2"}, words...)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = filepath.Join(o.root, c.folder)
	cmd.Env = append(cmd.Environ(), c.environment...)
	if os.Getenv("GOGC") == "" {
		cmd.Env = append(cmd.Env, "GOGC=300") // short programs on small heaps
	}
	var other bytes.Buffer // output other than events, such as the reason why nothing ran
	cmd.Stderr = &other
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.addFailure(p.name, err.Error())
		return 0
	}
	before := r.countFailures()
	r.readOutput(stdout, c, &other)
	if err := cmd.Wait(); err != nil && r.countFailures() == before {
		r.addFailure(p.name+": "+strings.Join(c.words, " "), other.String()+err.Error())
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// readOutput reads a command's output until its end. Lines that should be events but are not go to
// other.
func (r *report) readOutput(from io.Reader, c command, other *bytes.Buffer) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case c.events && json.Unmarshal(line, &e) == nil:
			r.takeEvent(e)
			if c.remembered && e.Test == "" && (e.Action == "pass" || e.Action == "skip") {
				r.passed.add(e.Package)
			}
		case c.events:
			other.Write(line)
		case len(line) > 0:
			r.printLine("%s", strings.TrimSuffix(string(line), "\n"))
		}
		if err != nil {
			return
		}
	}
}

// event is a line of `go test -json`.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// takeEvent records an event.
func (r *report) takeEvent(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := e.Package
	if name == "" {
		name, _, _ = strings.Cut(e.ImportPath, " ") // "p [p.test]": p, compiled for its test
	}
	p := r.packages[name]
	if p == nil {
		p = &testedPackage{since: r.now(), running: make(map[string]time.Time), printed: make(map[string][]string)}
		r.packages[name] = p
	}
	inner := strings.Contains(e.Test, "/")
	switch e.Action {
	case "run", "cont":
		if !inner {
			p.running[e.Test] = r.now()
		}
	case "pause":
		delete(p.running, e.Test)
	case "output", "build-output":
		p.cached = p.cached || e.Test == "" && strings.HasSuffix(e.Output, "\t(cached)\n")
		p.printed[e.Test] = append(p.printed[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageEnded(name, p, e)
			return
		}
		delete(p.running, e.Test)
		if e.Action != "fail" {
			delete(p.printed, e.Test)
		}
		if e.Action == "skip" {
			r.skipped = append(r.skipped, shortPath(name)+" "+e.Test)
		}
		if !inner {
			r.tests = append(r.tests, result{name: shortPath(name) + " " + e.Test, took: elapsedOf(e)})
		}
	}
}

func (r *report) packageEnded(name string, p *testedPackage, e event) {
	delete(r.packages, name)
	switch {
	case e.Action == "fail":
		r.failures = append(r.failures, shortPath(name))
		r.printLocked("FAIL %s %s", shortPath(name), formatSeconds(elapsedOf(e)))
		for _, test := range slices.Sorted(maps.Keys(p.printed)) {
			r.printLocked("%s", strings.TrimSuffix(strings.Join(p.printed[test], ""), "\n"))
		}
	case p.cached:
		r.printLocked("ok   %s, as before", shortPath(name))
	case e.Action == "pass":
		r.printLocked("ok   %s %s", shortPath(name), formatSeconds(elapsedOf(e)))
	}
}

func (r *report) addFailure(name, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, name)
	r.printLocked("FAIL %s\n%s", name, reason)
}

func (r *report) printLine(format string, arguments ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.printLocked(format, arguments...)
}

// printLocked prints a line; r.mu is held.
func (r *report) printLocked(format string, arguments ...any) {
	r.said = r.now()
	fmt.Fprintf(r.out, format+"\n", arguments...)
}

// silence is the time without output after which the running tests are printed.
const silence = 15 * time.Second

func (r *report) reportRunning(until <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-until:
			return
		case <-tick.C:
		}
		r.mu.Lock()
		if text := r.underWay(); text != "" && r.now().Sub(r.said) >= silence {
			r.printLocked("     running: %s", text)
		}
		r.mu.Unlock()
	}
}

// underWay lists the running packages with the test that has been running longest in each. The
// package that has been running longest is first.
func (r *report) underWay() string {
	var all []string
	for _, name := range slices.SortedFunc(maps.Keys(r.packages), func(a, b string) int {
		return r.packages[a].since.Compare(r.packages[b].since)
	}) {
		p := r.packages[name]
		text := shortPath(name) + " " + formatSeconds(r.now().Sub(p.since))
		if tests := slices.SortedFunc(maps.Keys(p.running), func(a, b string) int {
			return p.running[a].Compare(p.running[b])
		}); len(tests) > 0 {
			text += " (" + tests[0]
			if len(tests) > 1 {
				text += fmt.Sprintf(" and %d more", len(tests)-1)
			}
			text += ")"
		}
		all = append(all, text)
	}

	return strings.Join(all, ", ")
}

// slowest is the number of tests listed at the end.
const slowest = 10

func (r *report) printSummary() {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.tests, func(a, b result) int { return int(b.took - a.took) })
	r.printLocked("\n==> the slowest tests")
	for _, test := range r.tests[:min(slowest, len(r.tests))] {
		r.printLocked("%8s  %s", formatSeconds(test.took), test.name)
	}

	r.printLocked("\n==> the time of each part, and how much of it the processor took")
	for _, part := range r.parts {
		r.printLocked("%8s %8s  %s", formatSeconds(part.took), formatSeconds(part.cpu), part.name)
	}

	if text := r.underWay(); text != "" {
		r.printLocked("\n==> not ended: %s", text)
	}
	if len(r.skipped) > 0 {
		r.printLocked("\n==> skipped: %s", strings.Join(r.skipped, ", "))
	}

	if len(r.failures) > 0 {
		r.printLocked("\n==> FAILED: %s", strings.Join(r.failures, ", "))
	}
}

func elapsedOf(e event) time.Duration { return time.Duration(e.Elapsed * float64(time.Second)) }

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
