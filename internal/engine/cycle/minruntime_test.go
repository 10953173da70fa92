// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"testing"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
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
		oldClass string // minimum run times of the pods' priority classes; empty: none
		class    string
		want     string
	}{
		"upstream's order":                 {0, true, "1", 0, "", "", "young"},
		"the older pod":                    {10 * time.Minute, true, "1", 0, "", "", "old"},
		"the older, more important":        {10 * time.Minute, true, "1", 5, "", "", "old"},
		"the older pod is protected":       {10 * time.Minute, true, "1", 10, "", "", "young"},
		"both have run long enough":        {time.Second, true, "1", 0, "", "", "young"},
		"the profile is not gentle":        {10 * time.Minute, false, "1", 0, "", "", "young"},
		"both are spared":                  {2 * time.Hour, true, "1", 0, "", "", "young"},
		"the class is protected":           {0, true, "1", 0, "", "10m", "old"},
		"the class is not protected":       {10 * time.Minute, true, "1", 0, "", "0s", "young"},
		"the older pod's class is":         {10 * time.Minute, true, "1", 0, "2h", "0s", "young"},
		"the class has an invalid time":    {10 * time.Minute, true, "1", 0, "", "soon", "old"},
		"the class has a negative time":    {10 * time.Minute, true, "1", 0, "", "-1s", "old"},
		"a class needs gentle preemption":  {0, false, "1", 0, "", "10m", "young"},
		"the class is protected for a day": {0, true, "1", 10, "", "24h", "young"},
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
		young.Spec.PriorityClassName, old.Spec.PriorityClassName = "batch", "service"
		// A pod's own annotation has no effect.
		young.Annotations = map[string]string{MinRunTimeAnnotation: "5h"}
		r := &resizing{Core: core, now: begin}
		for name, least := range map[string]string{"batch": row.class, "service": row.oldClass} {
			class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if least != "" {
				class.Annotations = map[string]string{MinRunTimeAnnotation: least}
			}
			r.tell(Seen{PriorityClasses, class})
		}
		r.tell(Follows{}, Seen{Nodes, aNode("n", "1")}, Seen{Nodes, aNode("other", "1")},
			Seen{Pods, young}, Seen{Pods, old}, Seen{Pods, preemptor}, Led{})
		if got := r.victims(); got != row.want {
			t.Errorf("%s: victims %q, want %q", name, got, row.want)
		}
	}
}
