// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// learningCore returns a core with two nodes with room for a pod of one CPU each, and a profile
// with the plugin Fragmentation, which learns from arriving pods.
func learningCore(t *testing.T) *Core {
	t.Helper()
	parsed, err := config.Parse("profile", []byte(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: Fragmentation}]}}
`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	core, err := New(Options{Profiles: []Profile{{Profile: parsed.Profiles[0]}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []Event{Follows{}, Seen{Nodes, aNode("a", "1")}, Seen{Nodes, aNode("b", "1")}, Led{}, Tick{}} {
		core.Step(begin, e)
	}
	return core
}

// seenPods returns the number of pods counted by the plugin.
func seenPods(c *Core) int64 {
	if learnt := c.Save().Learnt[v1.DefaultSchedulerName]; learnt != nil {
		return learnt.Seen
	}
	return 0
}

// TestFailedBindingsTeachNothing verifies that a pod bound at the third attempt counts as one
// arrival.
func TestFailedBindingsTeachNothing(t *testing.T) {
	core := learningCore(t)
	core.Step(begin, Seen{Pods, aPod("p", "1")})
	bound := 0
	for attempt := range 3 {
		now := begin.Add(time.Duration(attempt) * time.Minute)
		for _, action := range core.Step(now, Tick{}) {
			bind, ok := action.(Bind)
			if !ok {
				continue
			}
			answer := Answered{Ticket: bind.Ticket}
			if attempt < 2 {
				answer.Outcome.Fault = &Fault{Message: "the API server is away"}
			}
			core.Step(now, answer)
			bound++
		}
	}
	if bound != 3 {
		t.Fatalf("the pod was to be bound %d times, want 3", bound)
	}
	if seen := seenPods(core); seen != 1 {
		t.Errorf("%d pods came, want 1", seen)
	}
}

// TestGroupsWithoutRoomTeachNothing verifies that members that fit, but are taken back because a
// third member does not fit, are not counted.
func TestGroupsWithoutRoomTeachNothing(t *testing.T) {
	core := learningCore(t)
	core.Step(begin, Seen{PodGroups, gangOf("g", 3)})
	for i := range 3 {
		p := aPod(fmt.Sprint("p", i), "1")
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		core.Step(begin, Seen{Pods, p})
	}
	tried := 0
	for minute := range 3 {
		for _, action := range core.Step(begin.Add(time.Duration(minute)*time.Minute), Tick{}) {
			switch action := action.(type) {
			case Bind:
				t.Fatalf("%s is bound", action.Attempt.Pod.Name)
			case WriteStatus:
				tried++
			}
		}
	}
	if tried == 0 {
		t.Fatal("the group was not tried")
	}
	if seen := seenPods(core); seen != 0 {
		t.Errorf("%d pods came, want none", seen)
	}
}
