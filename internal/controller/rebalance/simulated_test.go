// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
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

// rounds returns the names of pods in the order of their times. Pods less than two seconds apart
// leave in the same round, and are sorted: the controllers of a stage take different times.
func rounds(names []string, times []time.Duration) (list []string) {
	for i := 0; i < len(names); {
		end := i + 1
		for end < len(names) && times[end]-times[end-1] < 2*time.Second {
			end++
		}
		list = append(list, strings.Join(slices.Sorted(slices.Values(names[i:end])), " "))
		i = end
	}
	return list
}

// TestForecastsOfGuardedDrainsAreTheStages verifies that a simulated drain with the eviction guard
// replaces the same pods in the same rounds and on the same nodes as the guard on a stage, on
// random clusters. At most one in ten replacements is on another node, because nodes of equal
// score are chosen at random.
func TestForecastsOfGuardedDrainsAreTheStages(t *testing.T) {
	replaced, elsewhere := 0, 0
	for seed := range uint64(200) {
		var lines []string
		for line := range strings.Lines(drawGuarded(seed)) {
			if !strings.HasPrefix(line, "pod db") { // a stage has no StatefulSets
				lines = append(lines, strings.Replace(line, "cpu=16", fmt.Sprintf("cpu=%d", 16+1<<min(len(lines), 6)), 1)) // different scores
			}
		}
		g := newGuarded(t, seed, strings.TrimSpace(strings.Join(lines, "")))
		var objects []metav1.Object
		for _, key := range slices.Sorted(maps.Keys(g.objects)) {
			if rs, ok := g.objects[key].(*appsv1.ReplicaSet); ok { // a stage creates pods without a template
				pod := g.template[rs.UID]
				rs.Spec.Template = v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: *pod.Spec.DeepCopy()}
				rs.Spec.Template.Spec.NodeName = ""
			}
			objects = append(objects, g.objects[key])
		}
		w, err := simulate.Open(manifest.Assemble("stage", objects), simulate.Options{Now: g.Now})
		if err != nil {
			t.Fatal(err)
		}
		drain := &simulate.Drain{Nodes: simulate.Nodes{Node: "n0"}, GuardEvictions: new(true)}
		if _, err := w.Do(&simulate.Operation{Drain: drain}); err != nil {
			t.Fatal(err)
		}
		w.Advance(20 * time.Minute)
		var simulated, staged []string
		var times, stagedTimes []time.Duration
		more := map[string]int{} // replacements on a node, less those of the stage
		for _, d := range w.Departures() {
			_, node, _, _ := d.Next()
			more[node]++
			simulated, times = append(simulated, d.Name), append(times, d.After.Duration())
		}

		g.startGuard()
		if !g.drain("n0", 15*time.Minute) {
			t.Fatalf("seed %d: not drained\n%s", seed, g.lines.String())
		}
		g.pass(2 * time.Minute)
		on := map[string]string{}
		for line := range strings.Lines(g.lines.String()) {
			at, line, _ := strings.Cut(strings.TrimSpace(line), "s ")
			if name, where, ok := strings.Cut(line, " Arrived -> "); ok {
				on[name], _, _ = strings.Cut(where, " ")
			} else if name, _, ok := strings.Cut(line, " Replaced"); ok {
				seconds, err := strconv.ParseFloat(at, 64)
				if err != nil {
					t.Fatal(err)
				}
				staged, stagedTimes = append(staged, name), append(stagedTimes, time.Duration(seconds*float64(time.Second)))
				more[on[name]]--
			}
		}
		if simulated, staged := rounds(simulated, times), rounds(staged, stagedTimes); !slices.Equal(simulated, staged) {
			t.Errorf("seed %d:\nsimulated %q\nstaged    %q\n%s", seed, simulated, staged, g.lines.String())
		}
		for _, n := range more {
			elsewhere += max(n, 0)
		}
		replaced += len(staged)
		g.judgeEnd()
		g.report(seed)
	}
	if t.Logf("%d pods replaced, %d of them on another node", replaced, elsewhere); replaced < 200 || elsewhere > replaced/10 {
		t.Errorf("%d pods were replaced, %d of them on another node", replaced, elsewhere)
	}
}
