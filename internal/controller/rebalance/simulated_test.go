// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestSimulatedMovesAreTheStages verifies that a simulated rebalance makes the same moves, in the
// same order, as the process on a stage whose scheduler reserves room, on random clusters.
func TestSimulatedMovesAreTheStages(t *testing.T) {
	moves := 0
	for seed := range uint64(500) {
		// The worlds have no StatefulSets, whose objects a stage lacks, no pending pods, which the
		// two schedulers may place on different nodes of equal score, and no unready pods, whose
		// successors the next plan would see in different states.
		r := rand.New(rand.NewPCG(seed, 17))
		text, _ := draw(r)
		text = strings.NewReplacer("StatefulSet/", "ReplicaSet/", " unready", "").Replace(text)
		lines := slices.DeleteFunc(slices.Collect(strings.Lines(text)), func(line string) bool {
			return strings.HasPrefix(line, "pod ") && !strings.Contains(line, " on=")
		})
		goals := [...][]string{{"heal"}, {"spread"}, {"heal", "consolidate=1"}, {"consolidate=2"}, {"return"}}[r.IntN(5)]
		policy, err := rebalance.ReadGoals(goals, "default")
		if err != nil {
			t.Fatal(err)
		}
		s := newStage(t, seed, strings.TrimSpace(strings.Join(lines, "")), policy)
		s.keeps, s.draining = true, true
		var objects []metav1.Object
		for _, key := range slices.Sorted(maps.Keys(s.objects)) {
			objects = append(objects, s.objects[key])
		}
		w, err := simulate.Open(manifest.Assemble("stage", objects), simulate.Options{Now: begin})
		if err != nil {
			t.Fatal(err)
		}
		done, err := w.Do(&simulate.Operation{Rebalance: &simulate.Rebalance{Goals: goals, Namespace: "default"}})
		if err != nil {
			t.Fatal(err)
		}
		w.Advance(40 * time.Minute)
		var simulated []string
		for _, d := range w.Departures() {
			if name, node, _, ok := d.Next(); ok && name.Name != "" {
				simulated = append(simulated, fmt.Sprintf("%s %s -> %s", d.Name, d.Node, node))
			}
		}

		s.start()
		s.Run(40 * time.Minute)
		var staged []string
		for line := range strings.Lines(s.lines.String()) {
			if _, name, ok := strings.Cut(strings.TrimSpace(line), "s "); ok {
				if name, where, ok := strings.Cut(name, " Arrived "); ok {
					staged = append(staged, name+" "+where)
				}
			}
		}
		if !slices.Equal(simulated, staged) || len(s.done) != 1 || done.Moved.Stopped != s.done[0].Stopped {
			t.Fatalf("seed %d: %v\nsimulated %q, %q\nstaged %q\n%s", seed, goals, simulated, done.Moved.Stopped, staged, s.lines.String())
		}
		moves += len(staged)
	}
	if t.Logf("%d moves", moves); moves < 100 {
		t.Errorf("only %d moves", moves)
	}
}
