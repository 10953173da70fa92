// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
)

func (w *world) decided(pod string) *decision.Decision {
	w.Helper()
	d, err := w.s.Decision(context.Background(), "default", pod)
	if err != nil {
		w.Fatal(err)
	}
	return d
}

func TestAPodThatWaitsIsTold(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(Options{})
		w.api.Put(aNode("n1", "2"), aNode("n2", "1"))
		w.pass(time.Second) // the watches of nodes and pods are independent
		w.api.Put(aPod("big", "4"))
		w.until("it waits", func() bool { return w.condition("big") != "" })
		d := w.decided("big")
		if d == nil || d.Result != decision.Unschedulable || d.Nodes != 2 || d.Reasons["Insufficient cpu"] != 2 || !slices.Equal(d.Plugins, []string{"NodeResourcesFit"}) {
			t.Fatalf("told %+v", d)
		}
		if "Unschedulable: "+d.Message != w.condition("big") {
			t.Errorf("told %q, written was %q", d.Message, w.condition("big"))
		}
		q := d.Queue
		if q == nil || q.Place != "unschedulable" || q.Attempts != 1 || q.NotBefore == nil || q.NotAfter == nil || q.NotAfter.Sub(d.At.Time) != 5*time.Minute {
			t.Fatalf("in the queue: %+v", q)
		}
		if len(q.Wakes) != 1 || q.Wakes[0].Plugin != "NodeResourcesFit" || !slices.Contains(q.Wakes[0].Events, "Node Add|UpdateNodeAllocatable") {
			t.Errorf("wakes for %+v", q.Wakes)
		}
		// A node that is too small causes another attempt and decision; the next node is large
		// enough.
		w.api.Put(aNode("n3", "3"))
		w.until("it was tried again", func() bool { return w.decided("big").Queue.Attempts == 2 })
		if again := w.decided("big"); again.Nodes != 3 || !again.At.After(d.At.Time) {
			t.Errorf("then told %+v", again)
		}
		w.api.Put(aNode("n4", "8"))
		w.untilBound("big")
		w.pass(time.Second)
		if d := w.decided("big"); d == nil || d.Result != decision.Placed || d.Node != "n4" || d.Feasible != 1 || d.Queue != nil || d.Message != "" {
			t.Errorf("in the end told %+v", d)
		}
		w.do(func() {
			if n := w.s.core.Books().Decisions; n != 0 {
				t.Errorf("%d pods are remembered that wait no more", n)
			}
		})
	})
}

func TestAPodThatMakesRoomIsTold(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(Options{})
		victim := aPod("low", "2")
		grace := int64(30)
		victim.Spec.TerminationGracePeriodSeconds = &grace
		w.api.Put(aNode("n1", "2"), victim)
		w.untilBound("low")
		w.api.Put(withPriority(aPod("high", "2"), 10))
		w.until("room is made", func() bool { d := w.decided("high"); return d != nil && d.NominatedNode != "" })
		d := w.decided("high")
		if d.NominatedNode != "n1" || len(d.Victims) != 1 || d.Victims[0].Name != "low" || d.Result != decision.Unschedulable || d.Queue == nil {
			t.Errorf("told %+v", d)
		}
		w.api.Delete(victim)
		w.untilBound("high")
	})
}

func TestPodsThatWereNotDecidedAreTold(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(Options{})
		gated := aPod("gated", "1")
		gated.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}}
		w.api.Put(gated)
		w.until("it is known", func() bool { return w.decided("gated") != nil })
		if d := w.decided("gated"); d.Result != decision.None || d.At != nil || d.Queue.Place != "gated" || d.Queue.Gate != "SchedulingGates" || d.UID != gated.UID {
			t.Errorf("told %+v, %+v", d, d.Queue)
		}
		if d := w.decided("nobody"); d != nil {
			t.Errorf("of nobody is told %+v", d)
		}
		w.api.Delete(gated)
		w.until("it is forgotten", func() bool { return w.decided("gated") == nil })
	})
}

// TestWhatIsRememberedIsBounded verifies that decisions are remembered only for the last MostPlaced
// placed pods.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(Options{})
		w.api.Put(aNode("n1", "4000"), aNode("n2", "4000"))
		node := aNode("n3", "4000")
		node.Status.Allocatable[v1.ResourcePods] = *many()
		w.api.Put(node)
		const more = 50
		for i := range cycle.MostPlaced + more {
			w.api.Put(aPod(fmt.Sprint("p", i), "1"))
		}
		w.until("all are bound", func() bool { return len(w.api.Bindings()) == cycle.MostPlaced+more })
		w.pass(time.Second)
		known := 0
		for i := range cycle.MostPlaced + more {
			if w.decided(fmt.Sprint("p", i)) != nil {
				known++
			}
		}
		if known != cycle.MostPlaced {
			t.Errorf("%d of %d are remembered, want %d", known, cycle.MostPlaced+more, cycle.MostPlaced)
		}
	})
}

// TestABindingThatIsTakenBackIsTold verifies that if a placement is abandoned, Decision returns the
// rejection and not the placement.
func TestABindingThatIsTakenBackIsTold(t *testing.T) {
	inWorld(t, func(w *world) {
		o := &outsider{name: "A", refuse: "permit"}
		w.start(Options{Profiles: []cycle.Profile{with(w.T, o)}})
		w.api.Put(aNode("n1", "2"), aPod("p", "1"))
		w.until("it was refused", func() bool { return w.condition("p") != "" })
		d := w.decided("p")
		if d.Result != decision.Unschedulable || !strings.Contains(d.Message, "not now") || !slices.Equal(d.Plugins, []string{"A"}) || d.Node != "" {
			t.Errorf("told %+v", d)
		}
	})
}
