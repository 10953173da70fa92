// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestLiveReplayTrialAndSimulationAgree compares the live scheduler, a replay of its journal, a
// course with simulated responses, and a simulation from the cluster's initial state. It verifies
// that all place the same pods, including preemption, and that all but the simulation place them on
// the same nodes.
func TestLiveReplayTrialAndSimulationAgree(t *testing.T) {
	text := record(t, spread, func(c *town) {
		for i := range 10 {
			c.node(fmt.Sprint("n", i))
		}
		for i := range 5 {
			c.pod(fmt.Sprint("urgent-", i), "1800m", 1000, "")
		}
		for i := range 60 {
			c.pod(fmt.Sprintf("p%02d", i), "600m", 0, "")
		}
		c.after(time.Second, func() { c.pod("late", "3500m", 2000, "") })
		c.after(time.Minute, func() {})
	})
	var began []metav1.Object // objects that existed before the first decision
	seen := map[types.UID]bool{}
	r, err := journal.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	seed := r.Header.Seed
	result, err := journal.Replay(r, journal.Options{Profiles: profilesOf, Each: func(_ int, record journal.Record, _ *cycle.Core) {
		if e, ok := record.Event.(cycle.Seen); ok && !seen[e.Object.GetUID()] && record.At.Equal(dawn) {
			seen[e.Object.GetUID()] = true
			began = append(began, e.Object)
		}
	}})
	if err != nil || result.Parting != nil {
		t.Fatal(err, result.Parting)
	}

	r, err = journal.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	course, err := Play(r, Options{Recorded: profilesOf})
	if err != nil {
		t.Fatal(err)
	}
	live, played := map[string]string{}, map[string]string{}
	for _, f := range course.Pods {
		if f.Recorded != "" {
			live[f.Name.Name], played[f.Name.Name] = f.Recorded, f.Node
		}
	}
	if len(live) < 50 || len(course.Preempted) == 0 {
		t.Fatalf("%d pods placed, %d preempted: too little to compare", len(live), len(course.Preempted))
	}
	if diff := cmp.Diff(live, played); diff != "" {
		t.Errorf("trial (- live): %s", diff)
	}

	profiles, err := profilesOf(r.Header, []byte(spread))
	if err != nil {
		t.Fatal(err)
	}
	o := simulate.Options{Seed: seed, Profiles: []*plugins.Profile{profiles[0].Profile}, Now: dawn}
	said, err := simulate.Run(manifest.Assemble("journal", began), o)
	if err != nil {
		t.Fatal(err)
	}
	simulated := map[string]string{}
	for _, p := range said.Pods {
		if p.Node != "" {
			simulated[p.Name] = p.Node
		}
	}
	for name := range live {
		if !seen[types.UID(name)] {
			delete(live, name) // the pod appeared later
		}
	}
	// Among equally good nodes, the choice depends on the timing of responses, for which a
	// simulation need not wait.
	counts, pods := loads(live)
	alsoCounts, alsoPods := loads(simulated)
	if diff := cmp.Diff(counts, alsoCounts) + cmp.Diff(pods, alsoPods); diff != "" {
		t.Errorf("simulation (- live): %s", diff)
	}
}

// loads returns the nodes' pod counts in descending order, and the placed pods.
func loads(placed map[string]string) (counts []int, pods []string) {
	perNode := map[string]int{}
	for pod, node := range placed {
		perNode[node]++
		pods = append(pods, pod)
	}
	for _, n := range perNode {
		counts = append(counts, n)
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	slices.Sort(pods)
	return counts, pods
}
