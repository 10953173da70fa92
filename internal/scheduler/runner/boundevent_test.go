// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestEveryPodThatIsBoundIsAnnouncedOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n1", "1000"))
		for i := range 50 {
			w.api.Put(aPod(fmt.Sprint("p", i), "100m"))
		}
		w.start(Options{})
		for i := range 50 {
			w.untilBound(fmt.Sprint("p", i))
		}
		w.end()
		about := map[string]bool{}
		for _, e := range w.api.Events() {
			about[e.InvolvedObject.Name] = true
			if e.Reason != "Scheduled" || e.Type != v1.EventTypeNormal || e.Source.Component != "default-scheduler" || e.Count != 1 ||
				e.Message != "Successfully assigned "+e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name+" to n1" {
				t.Errorf("wrote %+v", e)
			}
		}
		if n := len(w.api.Events()); n != 50 || len(about) != 50 {
			t.Errorf("%d events about %d pods, want 50", n, len(about))
		}
	})
}

// TestScheduledEventsCanBeOmitted verifies that NoScheduledEvents omits the events about bindings,
// and no others.
func TestScheduledEventsCanBeOmitted(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n1", "1000"))
		w.api.Put(aPod("small", "100m"))
		w.api.Put(aPod("large", "2000"))
		w.start(Options{NoScheduledEvents: true})
		w.untilBound("small")
		w.end()
		if events := w.api.Events(); len(events) != 1 || events[0].Reason != "FailedScheduling" {
			t.Errorf("wrote %+v, want only the event about the large pod", events)
		}
	})
}
