// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodThatCouldRunIsNoticed(t *testing.T) {
	from := func(scheduler string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.SchedulerName = scheduler }
	}
	for _, c := range []struct {
		name  string
		there string // CPU requested by a pod of priority 10 on the only node, which has 4 CPUs
		waits func(*story) *v1.Pod
		could string
	}{
		{"room", "1", func(s *story) *v1.Pod { return s.pod("p", "", "3") }, "1 nodes could take it"},
		{"no room", "2", func(s *story) *v1.Pod { return s.pod("p", "", "3") }, ""},
		{"no room, of the same priority", "2", func(s *story) *v1.Pod { return s.pod("p", "", "3", ofPriority(10)) }, ""},
		{"room in place of another", "2", func(s *story) *v1.Pod { return s.pod("p", "", "3", ofPriority(11)) }, "in place of pods that matter less"},
		{"the same, if budgets let it", "2", func(s *story) *v1.Pod { return s.pod("p", "", "3", ofPriority(11), from(careful)) }, ""},
		{"never room", "2", func(s *story) *v1.Pod { return s.pod("p", "", "5", ofPriority(11)) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStory(t)
			node, there, waits := s.node("n"), s.pod("a", "n", c.there, ofPriority(10)), c.waits(s)
			got := newJudge([]v1.Node{*node}, []v1.Pod{*there, *waits}).couldRun(waits)
			if c.could == "" && got != "" || !strings.Contains(got, c.could) {
				t.Errorf("%q, want %q", got, c.could)
			}
		})
	}
}

func TestWhatIsNotAtRest(t *testing.T) {
	unready := func(p *v1.Pod) { p.Status.Conditions = nil }
	ended := func(p *v1.Pod) { p.Status.Phase, p.Status.Conditions = v1.PodFailed, nil }
	leaving := func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	ofJob := func(p *v1.Pod) { p.Labels = map[string]string{"app": "job"} }
	for _, c := range []struct {
		name   string
		change []func(*v1.Pod)
		stirs  string
	}{
		{"runs", nil, ""},
		{"is not ready", []func(*v1.Pod){unready}, "is not ready on n"},
		{"has ended", []func(*v1.Pod){ended}, ""},
		{"leaves", []func(*v1.Pod){leaving}, "is leaving"},
		{"has ended and leaves", []func(*v1.Pod){ended, leaving}, "is leaving"},
		{"will end", []func(*v1.Pod){ofJob}, "runs to its end"},
	} {
		s := newStory(t)
		if got := whyUnsettled(s.pod("p", "n", "1", c.change...)); got != c.stirs {
			t.Errorf("%s: %q, want %q", c.name, got, c.stirs)
		}
	}
}
