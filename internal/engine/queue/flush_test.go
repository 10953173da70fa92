// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"
	"time"
)

func TestNobodyWaitsLongerThanFiveMinutes(t *testing.T) {
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Never"}, nil, epoch)
	q.Flush(epoch.Add(MaxWait - time.Second))
	pop(t, q, epoch.Add(MaxWait-time.Second), "nothing")
	q.Flush(epoch.Add(MaxWait))
	if item := pop(t, q, epoch.Add(MaxWait), "p"); !item.Overdue {
		t.Error("nobody can tell that no event has woken it")
	}
}

// TestGatesAreAskedAgain verifies that gates are called again every five minutes, regardless of the
// events registered by their plugins.
func TestGatesAreAskedAgain(t *testing.T) {
	for _, interest := range []Interest{
		{Resource: AnyResource, Action: All, Hint: func(*Item, *Event) bool { return false }},
		{Resource: AnyResource, Action: Add},
		{Resource: Node, Action: All},
	} {
		q, closed, asked := newQueue(), true, 0
		q.Admit = func(*Item) string {
			if asked++; closed {
				return "Gate"
			}
			return ""
		}
		q.SetInterests("s", Interests{"Gate": {interest}})
		item := q.Add(pod("p", 0), class, epoch)

		q.Flush(epoch.Add(MaxWait - time.Second))
		if asked != 1 {
			t.Fatalf("the gate was asked again before the time")
		}
		q.Flush(epoch.Add(MaxWait))
		if item.Place() != Gated || item.Overdue || asked != 2 {
			t.Fatalf("the gate is closed and was asked %d times, and the pod is %s", asked, item.Place())
		}

		closed = false
		q.Flush(epoch.Add(2*MaxWait - time.Second))
		if item.Place() != Gated {
			t.Fatalf("it came in too early: it is %s", item.Place())
		}
		q.Flush(epoch.Add(2 * MaxWait))
		if item.Place() != Active || !item.Overdue {
			t.Errorf("%s %s: the gate is open, and the pod is %s", interest.Resource, interest.Action, item.Place())
		}
	}
}

// TestUpdatesOfThePodItself verifies that updates of a pending pod are labelled by the change, and
// are covered only by interests in the rejected pod or in all pods.
func TestUpdatesOfThePodItself(t *testing.T) {
	for _, row := range []struct {
		interest Resource
		actions  Action
		label    string
		woken    bool
	}{
		{TargetPod, UpdatePodToleration, "TargetPodUpdatePodToleration", true},
		{TargetPod, UpdatePodLabel | UpdatePodScaleUp, "TargetPodUpdatePodLabel", true},
		{TargetPod, Update, "TargetPodUpdate", true},
		{Pod, UpdatePodScaleDown, "TargetPodUpdatePodScaleDown", true},
		{AssignedPod, UpdatePodToleration, "", false},
		{UnscheduledPod, UpdatePodToleration, "", false},
	} {
		q := newQueue()
		q.SetInterests("s", Interests{"Never": {{Resource: row.interest, Action: All}}})
		item := q.Add(pod("p", 0), class, epoch)
		q.Rejected(pop(t, q, epoch, "p"), []string{"Never"}, nil, epoch)
		label := ""
		q.Moved = func(_ *Item, moved string) { label = moved }
		q.Update(item, pod("p", 0), class, row.actions, epoch)
		if woken := item.Place() != Waiting; woken != row.woken || label != row.label {
			t.Errorf("%s %s: woken is %t by %q", row.interest, row.actions, woken, label)
		}
	}
}
