// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

func TestSeedMakesTheSameWorld(t *testing.T) {
	for seed := uint64(1); seed < 20; seed++ {
		if a, b := Generate(seed).YAML(), Generate(seed).YAML(); a != b {
			t.Fatalf("seed %d makes different worlds", seed)
		}
	}
	if Generate(1).YAML() == Generate(2).YAML() {
		t.Error("seeds 1 and 2 make the same world")
	}
}

// blind is a plugin NodeUnschedulable that ignores cordons.
type blind struct{}

func (blind) Name() string                                        { return "NodeUnschedulable" }
func (blind) Reads() plugins.Part                                 { return 0 }
func (blind) Filter(*cluster.Cluster, *cluster.Pod) plugins.Judge { return plugins.Judge{} }

// TestMistakesAreFound verifies that a mistake on Berth's side causes differences of exactly the
// expected kinds.
func TestMistakesAreFound(t *testing.T) {
	for _, mistake := range []struct {
		name string
		make func(*plugins.Profile)
		want []string // plugin and what
	}{
		{"a filter that lets all pass", func(p *plugins.Profile) {
			for i := range p.Filters { // some worlds disable the plugin
				if p.Filters[i].Name() == "NodeUnschedulable" {
					p.Filters[i] = blind{}
				}
			}
		}, []string{"NodeUnschedulable filter", " filter"}},
		{"a wrong weight", func(p *plugins.Profile) {
			for i := range p.Scorers {
				if p.Scorers[i].Name() == "TaintToleration" {
					p.Scorers[i].Weight++
				}
			}
		}, []string{" score by TaintToleration", " total"}},
		{"no preemption", func(p *plugins.Profile) { p.Preemption = false }, []string{" preemption"}},
	} {
		t.Run(mistake.name, func(t *testing.T) {
			kinds := map[string]bool{}
			for seed := uint64(1); seed <= 60; seed++ {
				for _, d := range compareBroken(t, Generate(seed), mistake.make) {
					kinds[d.Plugin+" "+d.What] = true
				}
			}
			for _, want := range mistake.want {
				if !kinds[want] {
					t.Errorf("not found: %q; found: %v", want, kinds)
				}
			}
		})
	}
}

func compareBroken(t *testing.T, w *World, make func(*plugins.Profile)) []Difference {
	t.Helper()
	u, err := newUpstream(t.Context(), w, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer u.stop()
	b, err := newBerth(w, nil)
	if err != nil {
		t.Fatal(err)
	}
	make(b.profile)
	b.decider = decide.New(b.cluster, b.profile, 1)
	_, found, err := compareWorld(t.Context(), w, u, b, presentPlugins())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDifferencesOnPurposeAreWrittenDown verifies that each kind of difference on purpose is
// documented.
func TestDifferencesOnPurposeAreWrittenDown(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{notFound, nominatedAnew, victimsAnew, allocatedAtOnce} {
		if !strings.Contains(string(text), "\n## "+kind+"\n") {
			t.Errorf("docs/reference/differences.md has no heading %q", kind)
		}
	}
}

func TestSmallestWorldStillDiffers(t *testing.T) {
	w := Generate(1)
	for seed := uint64(2); len(w.Nodes) < 5; seed++ {
		w = Generate(seed)
	}
	d := Difference{Pod: w.Pending[0].Name, What: "two labelled nodes"}
	differences := func(w *World) []Difference {
		labelled := slices.DeleteFunc(slices.Clone(w.Nodes), func(n *v1.Node) bool { return len(n.Labels) == 0 })
		if len(labelled) < 2 || len(w.Pending) == 0 {
			return nil
		}
		return []Difference{d}
	}
	s := &shrinker{budget: 4000, world: w, found: d, differences: differences}
	small, _ := s.shrinkWorld()
	if got := len(small.listObjects()); got != 3 { // two nodes and the pod
		t.Errorf("%d objects are left:\n%s", got, small.YAML())
	}
	for _, n := range small.Nodes {
		if len(n.Labels) != 1 || len(n.Status.Images) > 0 || len(n.Spec.Taints) > 0 {
			t.Errorf("node %s is not as small as can be:\n%s", n.Name, toYAML(n))
		}
	}
}
