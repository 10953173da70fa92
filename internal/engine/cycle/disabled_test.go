// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestWithoutExpectationTheNodeIsNotNominated verifies that the node of a pod held at Permit is
// written to nominatedNodeName, unless the gate NominatedNodeNameForExpectation is disabled.
func TestWithoutExpectationTheNodeIsNotNominated(t *testing.T) {
	for _, off := range []bool{false, true} {
		core, err := New(Options{Profiles: []Profile{profileWith(holdsAtPermit)}, Disabled: Disabled{Expectation: off}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		core.Step(begin, Led{})
		core.Step(begin, Seen{Nodes, aNode("n", "4")})
		p := aPod("p", "1")
		p.Labels = map[string]string{"hold": "yes"}
		core.Step(begin, Seen{Pods, p})
		var hold Ticket
		nominated, text := false, ""
		for _, action := range core.Step(begin, Tick{}) {
			text += action.String() + "\n"
			switch a := action.(type) {
			case Hold:
				hold = a.Ticket
			case WriteStatus:
				nominated = a.Nominate != nil && *a.Nominate == "n"
			}
		}
		if hold == 0 || nominated == off {
			t.Errorf("disabled %t:\n%s", off, text)
		}
		for _, action := range core.Step(begin, PermitAllowed{Ticket: hold, Plugin: "Holds"}) {
			text += action.String() + "\n"
		}
		if off && !strings.Contains(text, "bind default/p") {
			t.Errorf("it was allowed, and is not bound:\n%s", text)
		}
	}
}

// TestWithoutPopFromBackoffAnIdleCoreWaits verifies that an idle core waits for the end of
// back-offs if the gate SchedulerPopFromBackoffQ is disabled.
func TestWithoutPopFromBackoffAnIdleCoreWaits(t *testing.T) {
	for _, off := range []bool{false, true} {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Disabled: Disabled{PopFromBackoff: off}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		core.Step(begin, Led{})
		core.Step(begin, Seen{Pods, aPod("p", "1")})
		core.Step(begin, Seen{Nodes, aNode("small", "500m")})
		core.Step(begin, Tick{}) // the pod is rejected
		core.Step(begin, Seen{Nodes, aNode("large", "4")})
		bound := func(at time.Time) bool { return strings.Contains(tick(core, at), "bind default/p") }
		if got := bound(begin.Add(500 * time.Millisecond)); got == off {
			t.Errorf("disabled %t, within the back-off: bound %t", off, got)
		}
		if !off {
			continue
		}
		if at, ok := core.Due(); !ok || !at.Equal(begin.Add(time.Second)) {
			t.Errorf("a tick is due at %v, %t", at, ok)
		}
		if !bound(begin.Add(time.Second)) {
			t.Error("it is not bound when the back-off is over")
		}
	}
}

// TestWithoutPopFromBackoffAPreemptorWaits verifies that, as in kube-scheduler, a pod whose victim
// has terminated does not back off, unless the gate SchedulerPopFromBackoffQ is disabled.
func TestWithoutPopFromBackoffAPreemptorWaits(t *testing.T) {
	for _, off := range []bool{false, true} {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Disabled: Disabled{PopFromBackoff: off}})
		if err != nil {
			t.Fatal(err)
		}
		victim, preemptor := aPod("victim", "1"), aPod("p", "1")
		victim.Spec.NodeName, *preemptor.Spec.Priority = "n", 10
		for _, e := range []Event{Follows{}, Seen{Nodes, aNode("n", "1")}, Seen{Pods, victim}, Seen{Pods, preemptor}, Led{}} {
			core.Step(begin, e)
		}
		removed := false
		for _, action := range core.Step(begin, Tick{}) {
			if a, ok := action.(Remove); ok {
				removed = true
				core.Step(begin, Answered{Ticket: a.Ticket})
			}
		}
		if !removed {
			t.Fatal("it preempts nothing")
		}
		soon := begin.Add(500 * time.Millisecond)
		core.Step(soon, Gone{Pods, victim})
		if text := tick(core, soon); strings.Contains(text, "bind default/p") == off {
			t.Errorf("disabled %t, within the back-off:\n%s", off, text)
		}
		if over := begin.Add(time.Second); off && !strings.Contains(tick(core, over), "bind default/p") {
			t.Error("it is not bound when the back-off is over")
		}
	}
}

func tick(core *Core, at time.Time) (text string) {
	for _, action := range core.Step(at, Tick{}) {
		text += action.String() + "\n"
	}
	return text
}
