// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestWorkedCases runs the documentation's examples, and more of the same kind. The commands of the
// files:
//
//	cluster   the manifests extended by the following ones
//	config    the scheduler's configuration from here on
//	simulate  with manifests: the fate of the pods; explain adds every node's verdict, for=10m lets time pass
//	scenario  with steps: the timeline as written for people; kinds=(A,B) omits all other events, counts sums up
func TestWorkedCases(t *testing.T) {
	for _, dir := range []string{"testdata/worked", "testdata"} {
		files, err := filepath.Glob(dir + "/*.txt")
		if err != nil || len(files) == 0 {
			t.Fatalf("no cases in %s: %v", dir, err)
		}
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { workedCase(t, file) })
		}
	}
}

func workedCase(t *testing.T, file string) {
	var cluster string
	var profiles []*plugins.Profile
	datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "cluster":
			cluster = d.Input + "\n---\n"
			return ""
		case "config":
			c, err := config.Parse("config", []byte(d.Input), config.Options{})
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			profiles = c.Profiles
			return strings.Join(append(c.Notes, ""), "\n")
		case "simulate":
			return simulated(t, cluster+d.Input, simulate.Options{
				Profiles: profiles, Seed: 1, Explain: d.HasArg("explain"), For: argument(t, d, "for"),
			}, described)
		case "scenario":
			return simulated(t, cluster, simulate.Options{
				Profiles: profiles, Seed: 1, Scenario: scenario(t, d.Input), For: argument(t, d, "for"),
			}, func(s *simulate.Simulation) string { return timeline(d, s) })
		}
		d.Fatalf(t, "unknown command %q", d.Cmd)
		return ""
	})
}

func argument(t *testing.T, d *datadriven.TestData, name string) (value time.Duration) {
	t.Helper()
	if !d.HasArg(name) {
		return 0
	}
	var text string
	d.ScanArgs(t, name, &text)
	value, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return value
}

func simulated(t *testing.T, manifests string, options simulate.Options, describe func(*simulate.Simulation) string) string {
	t.Helper()
	set, err := manifest.Read([]string{"-"}, strings.NewReader(manifests), manifest.Options{})
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	s, err := simulate.Run(set, options)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	return describe(s)
}

func timeline(d *datadriven.TestData, s *simulate.Simulation) string {
	if kinds, ok := d.Arg("kinds"); ok {
		s.Timeline = slices.DeleteFunc(s.Timeline, func(e simulate.Event) bool { return !slices.Contains(kinds.Vals, e.Kind) })
	}
	if d.HasArg("counts") {
		return counts(s.Timeline)
	}
	var b strings.Builder
	if err := s.Write(&b, ""); err != nil {
		return "error: " + err.Error() + "\n"
	}
	table, _, _ := strings.Cut(b.String(), "\n\n")
	return table + "\n"
}

// counts sums up events by their text.
func counts(events []simulate.Event) string {
	type sum struct {
		n           int
		first, last simulate.Seconds
	}
	sums, order := map[string]*sum{}, []string{}
	for _, e := range events {
		what := strings.TrimSpace(e.Kind + " " + e.Message)
		if sums[what] == nil {
			sums[what] = &sum{first: e.After}
			order = append(order, what)
		}
		sums[what].n, sums[what].last = sums[what].n+1, e.After
	}
	var b strings.Builder
	for _, what := range order {
		fmt.Fprintf(&b, "%d times from %s to %s: %s\n", sums[what].n, sums[what].first, sums[what].last, what)
	}
	return b.String()
}

// described writes a simulation with one fact per line.
func described(s *simulate.Simulation) string {
	var b strings.Builder
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.After != 0 {
			fmt.Fprintf(&b, "after %s: ", p.After)
		}
		fmt.Fprintf(&b, "%s/%s: ", p.Namespace, p.Name)
		switch {
		case p.Node != "":
			b.WriteString(p.Node)
		case len(p.Victims) > 0:
			fmt.Fprintf(&b, "preempts on %s:", p.NominatedNode)
			for _, v := range p.Victims {
				fmt.Fprintf(&b, " %s/%s", v.Namespace, v.Name)
			}
			fmt.Fprintf(&b, ": %s", p.Message)
		default:
			b.WriteString("pending: " + p.Message)
		}
		b.WriteByte('\n')
		for j := range p.Nodes {
			describeNode(&b, &p.Nodes[j])
		}
	}
	for _, g := range s.Groups {
		if g.After != 0 {
			fmt.Fprintf(&b, "after %s: ", g.After)
		}
		fmt.Fprintf(&b, "podgroup %s/%s of %v: %d fit, %d are needed: ", g.Namespace, g.Name, g.Pods, g.Fit, g.Needed)
		if len(g.Victims) > 0 {
			fmt.Fprintf(&b, "preempts %v: ", g.Victims)
		}
		b.WriteString(g.Message + "\n")
	}
	for _, e := range s.Evictions {
		fmt.Fprintf(&b, "evicted: %s/%s from %s after %s: %s\n", e.Namespace, e.Name, e.Node, e.After, cmp.Or(e.Taint, e.Message))
	}
	return b.String()
}

func describeNode(b *strings.Builder, n *simulate.Node) {
	if !n.Feasible {
		fmt.Fprintf(b, "  %s: %s: %s: %s\n", n.Name, n.Plugin, n.Code, strings.Join(n.Reasons, "; "))
		return
	}
	var scores []string
	for name, score := range n.Scores {
		scores = append(scores, fmt.Sprintf("%s %d", name, score))
	}
	slices.Sort(scores)
	fmt.Fprintf(b, "  %s: %d = %s\n", n.Name, *n.Total, strings.Join(scores, " + "))
}
