// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestRecentlyStartedPodsAreSpared verifies that a profile with a minimum run time spares the pods
// that have started more recently, as long as another victim suffices, whatever its priority.
func TestRecentlyStartedPodsAreSpared(t *testing.T) {
	for name, row := range map[string]struct {
		least    time.Duration
		gentle   bool
		cpu      string // of the preemptor
		priority int32  // of the pod that has run for an hour, on other
		want     string
	}{
		"upstream's order":           {0, true, "1", 0, "young"},
		"the older pod":              {10 * time.Minute, true, "1", 0, "old"},
		"the older, more important":  {10 * time.Minute, true, "1", 5, "old"},
		"the older pod is protected": {10 * time.Minute, true, "1", 10, "young"},
		"both have run long enough":  {time.Second, true, "1", 0, "young"},
		"the profile is not gentle":  {10 * time.Minute, false, "1", 0, "young"},
		"both are spared":            {2 * time.Hour, true, "1", 0, "young"},
	} {
		profile := plugins.Default()
		profile.GentlePreemption, profile.MinRunTime = row.gentle, row.least
		core, err := New(Options{Profiles: []Profile{{Profile: profile}}})
		if err != nil {
			t.Fatal(err)
		}
		young, old, preemptor := placedPod("young", "1", 0), placedPod("old", "1", row.priority), aPod("preemptor", row.cpu)
		old.Spec.NodeName, *preemptor.Spec.Priority = "other", 10
		young.Status.StartTime = &metav1.Time{Time: begin.Add(-time.Minute)}
		old.Status.StartTime = &metav1.Time{Time: begin.Add(-time.Hour)}
		r := &resizing{Core: core, now: begin}
		r.tell(Follows{}, Seen{Nodes, aNode("n", "1")}, Seen{Nodes, aNode("other", "1")},
			Seen{Pods, young}, Seen{Pods, old}, Seen{Pods, preemptor}, Led{})
		if got := r.victims(); got != row.want {
			t.Errorf("%s: victims %q, want %q", name, got, row.want)
		}
	}
}
