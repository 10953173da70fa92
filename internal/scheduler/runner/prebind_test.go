// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// TestPluginsThatMayShareTheirTimeDo verifies that PreBind plugins that permit it run in parallel
// with the adjacent plugins in the profile.
func TestPluginsThatMayShareTheirTimeDo(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		name  string
		slow  [4]time.Duration // duration of PreBind of A to D; 0: no work
		alone string           // names of the plugins that do not run in parallel
		takes time.Duration
	}{
		{"all at once", [4]time.Duration{10 * second, 20 * second, 5 * second, second}, "", 20 * second},
		{"one after the other", [4]time.Duration{10 * second, 20 * second, 5 * second, second}, "ABCD", 36 * second},
		{"one between", [4]time.Duration{10 * second, 20 * second, 5 * second, second}, "C", 26 * second},
		{"one between that has nothing to do", [4]time.Duration{10 * second, 20 * second, 0, 7 * second}, "C", 27 * second},
		{"one that may share has nothing to do", [4]time.Duration{10 * second, 0, 5 * second, 7 * second}, "", 10 * second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				var all []*outsider
				for i, slow := range c.slow {
					name := string(rune('A' + i))
					all = append(all, &outsider{name: name, slow: slow, parallel: !strings.Contains(c.alone, name)})
				}
				w.start(Options{Profiles: []cycle.Profile{with(w.T, all...)}})
				w.api.Put(aNode("n1", "4"), aPod("p", "1"))
				began := time.Now()
				w.pass(c.takes - second/2)
				if w.nodeOf("p") != "" {
					t.Errorf("bound before its time")
				}
				w.pass(second)
				if w.nodeOf("p") != "n1" {
					t.Errorf("not bound after %v", time.Since(began))
				}
			})
		})
	}
}

// TestOneThatFailsEndsTheWorkOfTheOthers verifies that the failure of a PreBind plugin cancels the
// plugins that run in parallel, and is reported in the pod's condition.
func TestOneThatFailsEndsTheWorkOfTheOthers(t *testing.T) {
	inWorld(t, func(w *world) {
		fails := &outsider{name: "A", slow: time.Second, parallel: true, refuse: "prebind"}
		slow := &outsider{name: "B", slow: time.Hour, parallel: true}
		w.start(Options{Profiles: []cycle.Profile{with(w.T, fails, slow)}})
		w.api.Put(aNode("n1", "4"), aPod("p", "1"))
		w.pass(100 * time.Millisecond)
		if got, want := w.condition("p"), `SchedulerError: running PreBind plugin "A": not now`; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for _, o := range []*outsider{fails, slow} {
			if !strings.Contains(o.words(), o.name+" unreserve p") {
				t.Errorf("%s said %s", o.name, o.words())
			}
		}
	})
}
