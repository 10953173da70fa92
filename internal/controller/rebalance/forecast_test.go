// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestForecastsOfRebalancesComeTrue compares the forecasts of rebalances of random clusters with
// their execution by the process that sends requests, when the scheduler reserves the room of
// successors: the same pods leave the same nodes in the same order, and the same nodes have the
// same pods at the end. If several nodes are equally good for a successor, the scheduler's choice
// may lead elsewhere, so such clusters may differ; few do.
func TestForecastsOfRebalancesComeTrue(t *testing.T) {
	moves, compared, ties := 0, 0, 0
	first, end, runs := seeds(1500, 150)
	for seed := first; compared < runs && seed < end+uint64(runs); seed++ {
		s := randomStage(t, seed)
		s.keeps = true
		if slices.ContainsFunc(s.pods(), func(p *v1.Pod) bool { return p.Spec.NodeName == "" }) {
			continue // the scheduler may choose another of the best nodes
		}
		goal := []string{"heal", "spread", "return", "consolidate=1", "consolidate=2"}[seed%5]
		policy, err := rebalance.ReadGoals([]string{goal}, "")
		if err != nil {
			t.Fatal(err)
		}
		s.policy = policy
		plan := rebalance.Make(s.state(), policy, rebalance.Options{Profiles: s.profiles})
		tied := slices.ContainsFunc(plan.Moves, func(m rebalance.Move) bool { return len(m.Or) > 0 })

		var objects []metav1.Object
		for _, key := range slices.Sorted(maps.Keys(s.objects)) {
			if p, ok := s.objects[key].(*v1.Pod); ok {
				p.Spec.TerminationGracePeriodSeconds = new(int64(2))
			}
			objects = append(objects, s.objects[key])
		}
		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{Now: begin})
		if err != nil {
			t.Fatal(err)
		}
		done, err := w.Do(&simulate.Operation{Rebalance: &simulate.Rebalance{Goals: []string{goal}}})
		if err != nil {
			t.Fatal(err)
		}
		w.Advance(40 * time.Minute)
		var forecast, actual []string
		for _, d := range w.Departures() {
			forecast = append(forecast, fmt.Sprintf("%s from %s", d.Owner, d.Node))
		}
		placed := map[string]int{}
		for _, p := range w.Each() {
			placed[fmt.Sprintf("%s on %s", workloadOf(p.Object), p.Object.Spec.NodeName)]++
		}

		s.leaves = func(p *v1.Pod) { actual = append(actual, fmt.Sprintf("%s from %s", workloadOf(p), p.Spec.NodeName)) }
		s.start()
		s.Run(40 * time.Minute)
		live := map[string]int{}
		for _, p := range s.pods() {
			live[fmt.Sprintf("%s on %s", workloadOf(p), p.Spec.NodeName)]++
		}
		if !slices.Equal(forecast, actual) || !maps.Equal(placed, live) || done.Moved.Elsewhere != s.results[string(execute.Elsewhere)] {
			if tied {
				ties++
				continue
			}
			t.Fatalf("seed %d, %s: forecast:\n%s\n%v\n%+v\nlive:\n%s\n%v\n%s", seed, goal, strings.Join(forecast, "\n"), placed, done.Moved,
				strings.Join(actual, "\n"), live, s.lines.String())
		}
		compared++
		moves += len(actual)
	}
	t.Logf("%d clusters, %d moves; %d clusters differ after a choice among equally good nodes", compared, moves, ties)
	if moves < compared/5 || ties > compared/50 {
		t.Errorf("%d moves in %d clusters, %d others differ: too few moves, or too many differences", moves, compared, ties)
	}
}

// workloadOf names the workload of a pod.
func workloadOf(p *v1.Pod) string {
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
		return owner.Kind + "/" + owner.Name
	}
	return p.Name
}
