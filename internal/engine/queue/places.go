// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// This file moves items between places. Every move consists of leavePlace, followed by enterPlace
// or waitFor. Each move is reported once, so the counts, the entities and the metrics match the
// places.

// wakeItem moves a Waiting, Backoff or Gated item to the place it now belongs in.
func (q *Queue) wakeItem(item *Item, label string, now time.Time) {
	if item.place == Gated && q.gateFor(item) == item.Gate {
		return // the same gate still rejects the item
	}
	q.leavePlace(item)
	q.enterPlace(item, label, now)
}

// helpItem wakes an item if an event can help it, and reports whether it did.
func (q *Queue) helpItem(item *Item, h help, label string, now time.Time) (woken bool) {
	if h == atOnce {
		item.ReadyAt = now
	}
	if h != nothing {
		q.wakeItem(item, label, now)
	}
	return h != nothing
}

// gateFor runs the gates for an item.
func (q *Queue) gateFor(item *Item) string {
	if q.Admit == nil {
		return ""
	}
	return q.Admit(item)
}

// enterPlace puts a Taken item into the place it belongs in: Gated, Backoff or Active. The gates
// are run each time, since a gate may reject an item that it admitted before.
func (q *Queue) enterPlace(item *Item, label string, now time.Time) {
	if item.Gate = q.gateFor(item); item.Gate != "" {
		item.EnteredAt = now
		q.countWaiting(item, withName(item.Rejectors, item.Gate))
		q.waitFor(item, []string{item.Gate}, nil, Gated)
		q.reportMoved(item, label)
		return
	}

	if item.Admitted.IsZero() {
		item.Admitted = now
		if q.Admitted != nil {
			q.Admitted(item)
		}
	}

	if item.ReadyAt.After(now) {
		q.putItem(item, Backoff)
	} else {
		q.putItem(item, Active)
	}
	q.lines.addItem(item)
	q.reportMoved(item, label)
}

// withName returns the names with name added, unless it is already present.
func withName(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(slices.Clip(names), name)
}

// waitFor adds an item to the group of items with these rejectors.
func (q *Queue) waitFor(item *Item, plugins, pending []string, place Place) {
	q.putItem(item, place)
	q.groups.addItem(item, plugins, pending, q.interests[item.Pod.Spec.SchedulerName])
}

// leavePlace removes an item from its place.
func (q *Queue) leavePlace(item *Item) {
	switch item.place {
	case Active, Backoff:
		heap.Remove(q.lines.lineOf(item), item.index)
	case Waiting, Gated:
		q.groups.removeItem(item)
		item.Gate = ""
	}
	q.putItem(item, Taken)
}

// putItem changes the item's place and the counts of places. The callers update heaps and groups.
func (q *Queue) putItem(item *Item, place Place) {
	q.counts[item.place]--
	q.counts[place]++
	q.entities.follow(item, item.place, place)
	item.place = place
}

// reportMoved notifies the queue's observers of an item's current place.
func (q *Queue) reportMoved(item *Item, label string) {
	if q.Moved != nil {
		q.Moved(item, label)
	}
	if place, group, moved := q.entities.takeMove(item); moved && q.EntityMoved != nil {
		q.EntityMoved(place, label, group)
	}
}

// countWaiting counts an item as kept waiting by these plugins, and stops counting it for all other
// plugins.
func (q *Queue) countWaiting(item *Item, plugins []string) {
	if q.Counted != nil && !slices.Equal(item.Counted, plugins) {
		q.count(item, item.Counted, -1)
		q.count(item, plugins, 1)
	}
	item.Counted = plugins
}

// count calls Counted, which must be set, for an item and these plugins.
func (q *Queue) count(item *Item, plugins []string, delta int) {
	for _, name := range plugins {
		q.counted[[2]string{name, item.Pod.Spec.SchedulerName}] += delta
		q.Counted(name, item.Pod.Spec.SchedulerName, delta)
	}
}

// advanceBackoff moves the items with a finished back-off to the active queue.
func (q *Queue) advanceBackoff(now time.Time) {
	for item := q.lines.rested(now); item != nil; item = q.lines.rested(now) {
		q.leavePlace(item)
		q.enterPlace(item, BackoffComplete, now)
	}
}

// Check returns an error if the queue's invariant does not hold. Tests call it after every step.
func (q *Queue) Check() error {
	seen := map[*Item]Place{}
	note := func(item *Item, place Place) error {
		if q.items[item.Pod.UID] != item {
			return fmt.Errorf("pod %s is in a place but not in the queue", item.Pod.UID)
		}
		if other, twice := seen[item]; twice {
			return fmt.Errorf("pod %s is in two places, %s and %s", item.Pod.UID, other, place)
		}
		seen[item] = place
		return nil
	}
	var err error
	for h, place := range map[*ordered]Place{&q.lines.active: Active, &q.lines.backing: Backoff, &q.lines.erring: Backoff} {
		for i, item := range h.items {
			if item.index != i {
				err = fmt.Errorf("pod %s has a wrong index", item.Pod.UID)
			}
			if e := note(item, place); e != nil {
				err = e
			}
		}
	}

	for key, g := range q.groups.byKey {
		for i, item := range g.items {
			if item.index != i || item.group != g || key.class != item.Class {
				err = fmt.Errorf("pod %s is in a group that is not its own", item.Pod.UID)
			}
			if e := note(item, item.place); e != nil {
				err = e
			}
		}
	}
	var counts [Gated + 1]int
	for uid, item := range q.items {
		counts[item.place]++
		if seen[item] != item.place { // the place of items in neither heaps nor groups is Taken
			err = fmt.Errorf("pod %s says that it is %s, but is %s", uid, item.place, seen[item])
		}
		if (item.Gate != "") != (item.place == Gated) {
			err = fmt.Errorf("pod %s is %s with gate %q", uid, item.place, item.Gate)
		}
	}
	if counts != q.counts {
		err = fmt.Errorf("counted %v, want %v", q.counts, counts)
	}
	return cmp.Or(err, q.entities.check(slices.Collect(q.Each)))
}

// Take takes a given pod, as Pop does, regardless of the events it waits for. It returns nil if the
// pod is gated or already Taken. Pods decided together are taken together.
func (q *Queue) Take(uid types.UID) *Item {
	item := q.items[uid]
	if item == nil || item.place == Taken || item.place == Gated {
		return nil
	}
	q.leavePlace(item)
	q.countWaiting(item, nil)
	item.Attempts++
	item.seen = q.happened.events
	return item
}

// Compare compares items by the order in which they were added.
func (i *Item) Compare(other *Item) int { return cmp.Compare(i.order, other.order) }

// backoffFor returns an item's back-off after a number of attempts. As upstream, the maximum
// back-off of pods decided together grows with the square root of their number, because such an
// attempt takes longer and should be made less often. With the default limits the back-off is 1 s,
// 2 s, 4 s, 8 s, and 10 s from then on; for 4 pods decided together, the maximum is 20 s.
func (q *Queue) backoffFor(item *Item, times int) time.Duration {
	last := q.LastBackoff
	if item.Together > 1 {
		last = time.Duration(min(float64(last)*math.Sqrt(float64(item.Together)), 1<<62))
	}
	if q.FirstBackoff > last>>(times-1) { // shifting last cannot overflow, unlike shifting FirstBackoff
		return last
	}
	return q.FirstBackoff << (times - 1)
}
