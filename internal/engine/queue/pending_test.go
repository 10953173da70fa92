// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "testing"

func TestPendingPodNeedNotBackOff(t *testing.T) {
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Pods"}, []string{"Pods"}, epoch)
	q.Happened(podGone, epoch)
	pop(t, q, epoch, "p")
}

// TestOnlyWhatAPodWaitsForEndsItsBackoff verifies that an event that resolves only the rejection by
// another rejector does not end the back-off.
func TestOnlyWhatAPodWaitsForEndsItsBackoff(t *testing.T) {
	rejected := func(q *Queue) *Item {
		item := q.Add(pod("p", 0), class, epoch)
		item.Patient = true // so that no idle Pop ends the back-off
		q.Rejected(pop(t, q, epoch, "p"), []string{"Nodes", "Pods"}, []string{"Pods"}, epoch)
		return item
	}
	q := newQueue()
	item := rejected(q)
	q.Happened(labelled, epoch)
	if item.Place() != Backoff {
		t.Errorf("a node was labelled: it is %s", item.Place())
	}
	q = newQueue()
	item = rejected(q)
	q.SetInterests("s", q.interests["s"])
	q.Happened(podGone, epoch)
	if item.Place() != Active {
		t.Errorf("what it waits for has happened: it is %s", item.Place())
	}
	q = newQueue()
	q.Add(pod("p", 0), class, epoch)
	item = pop(t, q, epoch, "p")
	item.Patient = true
	q.Happened(labelled, epoch)
	q.Happened(podGone, epoch)
	q.Rejected(item, []string{"Nodes", "Pods"}, []string{"Pods"}, epoch)
	if item.Place() != Active {
		t.Errorf("what it waits for happened while it was decided: it is %s", item.Place())
	}
}
