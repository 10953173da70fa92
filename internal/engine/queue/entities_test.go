// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestPodsOfAGroupAreOneEntity verifies that a group enters a place with its first pod, and leaves
// it with its last pod. An ungrouped pod is a separate entity.
func TestPodsOfAGroupAreOneEntity(t *testing.T) {
	q := newQueue()
	q.Grouped = true
	var lines []string
	q.EntityMoved = func(place Place, label string, group bool) {
		lines = append(lines, fmt.Sprintf("%s %s %t", place, label, group))
	}
	closed := true
	q.Admit = func(item *Item) string {
		if closed && item.Pod.Spec.SchedulingGroup != nil {
			return "Gate"
		}
		return ""
	}
	expect := func(step string, counts EntityCounts, moves ...string) {
		t.Helper()
		if !slices.Equal(lines, moves) {
			t.Errorf("%s: moved\n%s\nwant\n%s", step, strings.Join(lines, "\n"), strings.Join(moves, "\n"))
		}
		got := q.Entities()
		got.Pods[Taken], got.Groups[Taken] = 0, 0
		if got != counts {
			t.Errorf("%s: %+v, want %+v", step, got, counts)
		}
		if err := q.Check(); err != nil {
			t.Errorf("%s: %v", step, err)
		}
		lines = nil
	}
	later := epoch.Add(time.Minute)

	for _, name := range []string{"a", "b", "c"} {
		p := pod(name, 0)
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		q.Add(p, class, epoch)
	}
	q.Add(pod("alone", 0), class, epoch)
	expect("added", EntityCounts{Pods: [5]int{Active: 1}, Groups: [5]int{Gated: 1}}, "gated "+Appeared+" true", "active "+Appeared+" false")

	closed = false
	q.Happened(claimCame, epoch)
	expect("let in", EntityCounts{Pods: [5]int{Active: 1}, Groups: [5]int{Active: 1}}, "active "+claimCame.Label+" true")

	var items []*Item
	for range 4 {
		items = append(items, q.Pop(epoch))
	}
	expect("popped", EntityCounts{})

	for _, item := range items {
		q.Rejected(item, []string{"Pods"}, nil, epoch)
	}
	expect("rejected", EntityCounts{Pods: [5]int{Waiting: 1}, Groups: [5]int{Waiting: 1}},
		"unschedulable "+AttemptFailed+" true", "unschedulable "+AttemptFailed+" false")

	q.Activate("b", later)
	expect("one was activated", EntityCounts{Pods: [5]int{Waiting: 1}, Groups: [5]int{Active: 1}}, "active "+ForceActivate+" true")

	for _, name := range []string{"a", "b", "c", "alone"} {
		q.Remove(pod(name, 0).UID)
	}
	expect("removed", EntityCounts{})
	if len(q.entities.groups) != 0 {
		t.Error("the group is kept")
	}
}
