// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAnotherCoreKeepsTheDelay verifies that after another core takes over, a pod with a delayed
// preemption is still woken and preempts at the original time. If that time has already passed, it
// preempts immediately.
func TestAnotherCoreKeepsTheDelay(t *testing.T) {
	start := func() *Core {
		profile := plugins.Default()
		profile.GentlePreemption, profile.PreemptionDelay = true, time.Minute
		core, err := New(Options{Profiles: []Profile{{Profile: profile}}})
		if err != nil {
			t.Fatal(err)
		}
		low, high := aPod("low", "1"), aPod("high", "1")
		low.Spec.NodeName, *high.Spec.Priority = "n", 10
		for _, e := range []Event{Follows{}, Seen{Nodes, aNode("n", "1")}, Seen{Pods, low}, Seen{Pods, high}, Led{}} {
			core.Step(begin, e)
		}
		return core
	}
	preempts := func(takesOver time.Duration) (after time.Duration) {
		one := start()
		one.Step(begin, Tick{})
		other := start()
		now := begin.Add(takesOver)
		for other.Step(now, one.Save()); now.Before(begin.Add(2 * time.Minute)); now = other.Wake(now) {
			for _, action := range other.Step(now, Tick{}) {
				if _, ok := action.(Remove); ok {
					return now.Sub(begin)
				}
			}
		}
		return 0
	}
	for _, takesOver := range []time.Duration{20 * time.Second, time.Minute, 61 * time.Second} {
		if after, want := preempts(takesOver), max(takesOver, time.Minute); after != want {
			t.Errorf("the core that takes over after %s preempts after %s, want %s", takesOver, after, want)
		}
	}
}

// gentle checks the guarantees of gentle preemption in a world. No pod is preempted before the
// preemptor has been unschedulable for long enough, or while the room of terminating pods suffices.
// No pod is preempted if its replacement would wait with at least the preemptor's priority.
type gentle struct {
	unfit    map[types.UID]time.Time // time at which the core first reported a pod as unschedulable
	removals int                     // number of checked removals
}

func (g *gentle) forget() { g.unfit = map[types.UID]time.Time{} }

// checkGentle checks the victims chosen in a step, and records the time at which a pod is first
// reported as unschedulable.
func (w *world) checkGentle(because Event, actions []Action) {
	victims, moved, inMemory := map[types.UID]types.UID{}, map[types.UID]bool{}, false
	for _, action := range actions {
		switch a := action.(type) {
		case Remove:
			victims[a.Victim.UID] = a.For
		case WriteStatus:
			if a.Condition == nil {
				moved[a.Pod.UID] = true // the pod lost its nomination
			}
		case RecordEvent:
			inMemory = inMemory || a.Reason == "Preempted" // a withdrawn victim is no longer on its node
		}
	}
	if _, decided := because.(Tick); decided && w.options.Profiles[0].GentlePreemption {
		for _, victim := range sorted(victims) {
			w.gentle.removals++
			w.checkVictim(w.core.View().Cluster.Pod(victim), victims[victim])
			if g := w.groupOf(victims[victim]); g == nil && len(moved) == 0 && !inMemory {
				w.checkRoomOfLeavers(victims, victims[victim])
			}
		}
	}
	for _, action := range actions {
		if a, ok := action.(RecordEvent); ok && a.Reason == "FailedScheduling" {
			if _, known := w.gentle.unfit[a.Regarding.UID]; !known {
				w.gentle.unfit[a.Regarding.UID] = w.now
			}
		}
	}
}

// groupOf returns the group with this object UID, or a group of the tree with this root UID.
func (w *world) groupOf(uid types.UID) *groups.Group {
	all := w.core.View().Groups
	if all == nil {
		return nil
	}
	return all.ByUnitUID(uid)
}

// checkVictim checks the delay of a preempting pod or group, and the priorities.
func (w *world) checkVictim(victim *cluster.Pod, preemptor types.UID) {
	waiting, priority := []types.UID{preemptor}, int32(0)
	if g := w.groupOf(preemptor); g != nil {
		waiting, priority = waiting[:0], g.Priority()
		for _, g := range g.Tree() {
			waiting = slices.AppendSeq(waiting, g.Members)
		}
	} else {
		priority = w.priorityOf(preemptor, w.core.View().Queue.Get(preemptor).Class.Priority)
	}
	over := false
	for _, uid := range waiting {
		since, known := w.gentle.unfit[uid]
		over = over || known && w.now.Sub(since) >= w.options.Profiles[0].PreemptionDelay
	}
	if delay := w.options.Profiles[0].PreemptionDelay; delay > 0 && !over {
		w.breaks("%s is preempted for %s, which has not been unschedulable for %s", victim.Name(), preemptor, delay)
	}
	if after := w.priorityOf(victim.UID(), victim.Class.Priority); after >= priority {
		w.breaks("%s is preempted, whose replacement waits with priority %d, for a pod of %d", victim.Name(), after, priority)
	}
}

// priorityOf returns the priority with which a pod, or its replacement, competes for room while it
// is pending.
func (w *world) priorityOf(uid types.UID, own int32) int32 {
	if all := w.core.View().Groups; all != nil {
		if g := all.GroupOf(uid); g != nil && g.Object != nil {
			return g.Priority()
		}
	}
	return own
}

// checkRoomOfLeavers checks that the room of earlier, still terminating victims does not suffice
// for the preemptor in addition to all nominated pods.
func (w *world) checkRoomOfLeavers(victims map[types.UID]types.UID, preemptor types.UID) {
	known, left := w.core.View().Cluster, cluster.New()
	for _, n := range known.Nodes {
		if n == nil {
			continue
		}
		left.SetNode(n.Object())
		for _, p := range n.Pods {
			object, now := p.Object(), victims[p.UID()] != ""
			if now { // the pod was not terminating yet
				object.DeletionTimestamp = nil
			}
			if now || !p.Preempted {
				left.SetPod(object)
			}
		}
	}
	pod := left.Pending(w.core.View().Queue.Get(preemptor).Pod)
	feasible := func(n *cluster.Node) bool {
		v := decide.NewPlain(left, w.options.Profiles[0].Profile).Evaluate(pod).Verdict(left.Node(n.Name))
		return v != nil && v.Rejection == nil
	}
	for _, n := range known.Nodes {
		if n == nil || !feasible(n) {
			continue
		}
		for _, p := range n.Nominated {
			if object := p.Object(); p.UID() != preemptor {
				object.Spec.NodeName = n.Name
				left.SetPod(object)
			}
		}
		if feasible(n) {
			w.breaks("pods are preempted for %s, and others leave enough room on %s", preemptor, n.Name)
		}
		for _, p := range n.Nominated {
			left.RemovePod(p.UID())
		}
	}
}
