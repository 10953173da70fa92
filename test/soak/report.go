// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report holds a campaign's actions and findings.
type Report struct {
	Seed       uint64
	Nodes      int
	Took       time.Duration
	Rounds     int
	NoDisk     string // reason why the disk of etcd could not fill up; "" if it could
	Faults     map[string]int
	Requests   map[string]int
	Deeds      map[string]int
	Ends       map[string]int // number of unrequested ends, by component and reason
	Checks     map[string]int
	Sizes      map[string]string
	Rests      []time.Duration // times from the end of all faults until the cluster was at rest
	Violations []Violation
}

// sameKept is the maximum number of recorded violations with the same text.
const sameKept = 3

// addViolation records a violation.
func (c *campaign) addViolation(promise, what string, about ...string) {
	v := Violation{At: time.Now(), After: time.Since(c.began).Round(100 * time.Millisecond), Promise: promise, What: what, About: about}
	c.mu.Lock()
	same := 0
	for _, other := range c.violations {
		if other.Promise == promise && other.What == what {
			same++
		}
	}
	parts := slices.Clone(c.parts)
	c.mu.Unlock()
	if same >= sameKept {
		return
	}
	var words []string
	for _, a := range about {
		words = append(words, a)
		if _, name, ok := strings.Cut(a, "/"); ok { // some logs contain names without a namespace
			words = append(words, name)
		}
	}
	for _, p := range parts {
		lines := p.journal.linesAbout(12, words...)
		if slices.Contains(about, p.name) {
			lines = p.journal.lastLines(30)
		}
		slices.Reverse(lines)
		v.Lines = append(v.Lines, lines...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, v)
	if c.First && c.enough != nil {
		c.enough()
	}
	fmt.Fprintf(c.Out, "VIOLATION after %s: %s: %s\n", v.After, promise, what)
}

// printProgress prints a line every ten seconds.
func (c *campaign) printProgress(ctx context.Context) {
	for sleepFor(ctx, 10*time.Second) {
		c.observer.mu.Lock()
		pods, nodes := len(c.observer.pods), len(c.observer.nodes)
		c.observer.mu.Unlock()
		c.mu.Lock()
		fmt.Fprintf(c.Out, "%6s  round %d: %-12s  %d nodes, %d pods; %d faults, %d bad requests, %d deeds, %d checks; %d violations\n",
			time.Since(c.began).Round(time.Second), c.rounds+1, c.phase, nodes, pods, c.faults.sum(),
			c.requests.sum(), c.actions.sum(), c.observer.checks.sum(), len(c.violations))
		if len(c.unrest) > 0 {
			fmt.Fprintf(c.Out, "        %d are not at rest: %s\n", len(c.unrest), c.unrest[0])
		}
		c.mu.Unlock()
	}
}

func (c *campaign) makeReport() *Report {
	r := &Report{
		Seed: c.Seed, Nodes: c.Nodes, Took: time.Since(c.began).Round(time.Second), Rounds: c.rounds, NoDisk: c.noDisk,
		Faults: c.faults.all(), Requests: c.requests.all(), Deeds: c.actions.all(), Ends: c.ends.all(), Checks: c.observer.checks.all(),
		Sizes: map[string]string{}, Rests: c.rests, Violations: c.violations,
	}
	for name, most := range c.sizes.most {
		r.Sizes[name] = fmt.Sprintf("%d MiB", most.memory>>20)
		if most.goroutines > 0 {
			r.Sizes[name] += fmt.Sprintf(", %d goroutines", most.goroutines)
		}
	}
	return r
}

// Broken returns the number of violations.
func (r *Report) Broken() int { return len(r.Violations) }

// Print writes the human-readable report.
func (r *Report) Print(to io.Writer) {
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "\nseed %d, %d nodes, %s, %d rounds\n", r.Seed, r.Nodes, r.Took, r.Rounds)
	printTable(out, "faults", r.Faults)
	if r.NoDisk != "" {
		fmt.Fprintf(out, "  the disk of etcd never ran full: %s\n", r.NoDisk)
	}

	fmt.Fprintln(out, "  no clock was set: on one machine no process can be given another one; see docs/evidence/soak.md")
	printTable(out, "requests that fared badly", r.Requests)
	printTable(out, "what users and administrators did", r.Deeds)
	printTable(out, "parts that ended by themselves, with reason", r.Ends)
	printTable(out, "the most that parts took at rest", r.Sizes)
	fmt.Fprintf(out, "\nfrom the end of all trouble to rest: %v\n", roundAll(r.Rests))
	broken := map[string]int{}
	for _, v := range r.Violations {
		broken[v.Promise]++
	}

	fmt.Fprint(out, "\npromise\tchecked\tbroken\n")
	for _, promise := range promises {
		fmt.Fprintf(out, "  %s\t%d\t%d\n", promise, r.Checks[promise], broken[promise])
	}

	for _, name := range slices.Sorted(maps.Keys(r.Checks)) {
		if !slices.Contains(promises, name) {
			fmt.Fprintf(out, "  %s\t%d\t\n", name, r.Checks[name])
		}
	}

	out.Flush()
	for i, v := range r.Violations {
		fmt.Fprintf(to, "\n%d. after %s (%s), seed %d: %s\n   %s\n", i+1, v.After, v.At.Format("15:04:05.000"), r.Seed, v.Promise, v.What)
		for _, l := range v.Lines {
			fmt.Fprintf(to, "     %.400s\n", l)
		}
	}
}

func printTable[V any](out io.Writer, title string, rows map[string]V) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s\n", title)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(out, "  %s\t%v\n", name, rows[name])
	}
}

func roundAll(all []time.Duration) []time.Duration {
	rounded := make([]time.Duration, len(all))
	for i, d := range all {
		rounded[i] = d.Round(100 * time.Millisecond)
	}
	return rounded
}
