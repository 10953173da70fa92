// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/decide"
)

type seenBound struct {
	pod, node string
	feasible  int
	rejected  bool
}

type shadowLog []seenBound

func (l *shadowLog) Bound(pod *v1.Pod, node string, evaluation *decide.Evaluation, _ bool) {
	for i := range evaluation.Nodes {
		if v := &evaluation.Nodes[i]; v.Node.Name == node {
			*l = append(*l, seenBound{pod.Name, node, evaluation.Feasible, v.Rejection != nil})
		}
	}
}

// TestAShadowJudgesWhatOthersBindAndWritesNothing verifies that a shadow writes nothing, and
// evaluates each binding by another scheduler in the state of the cluster before that binding.
func TestAShadowJudgesWhatOthersBindAndWritesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		var seen shadowLog
		w.api.Put(aNode("small", "1"), aNode("large", "8"), on(aPod("there-before", "100m"), "large"), aPod("a", "1"), aPod("b", "1"), aPod("c", "1"))
		w.start(Options{Lead: make(chan struct{}), Shadow: &seen})
		w.pass(time.Minute)
		for _, b := range [][2]string{{"a", "small"}, {"b", "large"}, {"c", "small"}} {
			w.api.Put(on(aPod(b[0], "1"), b[1]))
		}
		w.pass(time.Minute)
		w.do(func() {
			want := shadowLog{{"a", "small", 2, false}, {"b", "large", 1, false}, {"c", "small", 1, true}}
			if len(seen) != len(want) {
				t.Fatalf("seen %v", seen)
			}
			for i := range want {
				if seen[i] != want[i] {
					t.Errorf("seen %v, want %v", seen[i], want[i])
				}
			}
		})
		if n := len(w.api.Bindings()) + len(w.api.Events()); n != 0 {
			t.Errorf("%d bindings and events", n)
		}
		if c := w.condition("a"); c != "" {
			t.Errorf("condition %s", c)
		}
	})
}

// TestAShadowJudgesWhatItHasSeenWhenItIsStopped verifies that bindings observed just before the end
// are evaluated.
func TestAShadowJudgesWhatItHasSeenWhenItIsStopped(t *testing.T) {
	inWorld(t, func(w *world) {
		var seen shadowLog
		w.api.Put(aNode("small", "1"), aNode("large", "8"), aPod("a", "1"), aPod("b", "1"))
		w.start(Options{Lead: make(chan struct{}), Shadow: &seen})
		w.pass(time.Minute)
		w.api.Put(on(aPod("a", "1"), "small"), on(aPod("b", "1"), "large"))
		w.pass(time.Second)
		w.end()
		if want := (shadowLog{{"a", "small", 2, false}, {"b", "large", 1, false}}); !slices.Equal(seen, want) {
			t.Errorf("seen %v, want %v", seen, want)
		}
	})
}

// TestNothingIsLostWhenTheWallClockIsSet verifies that work is not lost if it is due in the step
// that reports a change of the wall clock to the core.
func TestNothingIsLostWhenTheWallClockIsSet(t *testing.T) {
	inWorld(t, func(w *world) {
		var seen shadowLog
		w.api.Put(aNode("small", "1"), aPod("a", "1"))
		w.start(Options{Lead: make(chan struct{}), Shadow: &seen})
		w.pass(time.Minute)
		w.api.Put(on(aPod("a", "1"), "small"))
		w.pass(time.Second)
		w.do(func() { w.s.wallClock = func() time.Time { return time.Now().Add(-time.Hour) } })
		w.pass(time.Minute)
		w.do(func() {
			if want := (shadowLog{{"a", "small", 1, false}}); !slices.Equal(seen, want) {
				t.Errorf("seen %v, want %v", seen, want)
			}
		})
	})
}
