// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"container/heap"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// lines holds the pods that need no event, in one heap of active pods and two heaps of pods in
// back-off.
//
// The result of a pod's last attempt determines its back-off heap, and must not change while the
// pod is in that heap, because [lines.lineOf] uses it to find the heap. Only pods in backing may be
// popped early.
type lines struct {
	active  ordered
	backing ordered // pods in back-off after a rejection, by window of ready, then by urgency
	erring  ordered // pods that complete their back-off (after a failed attempt, or Patient), by ready
}

// orderBy sets the order of active pods. Pods in back-off after a rejection are ordered by window
// of their ready time and, within a window, by the order of active pods.
func (l *lines) orderBy(less func(a, b *Item) bool, windowOf func(time.Time) time.Time) {
	l.active.before = func(a, b *Item) bool {
		if less(a, b) {
			return true
		}
		return !less(b, a) && a.order < b.order
	}
	l.backing.before = func(a, b *Item) bool {
		if w, v := windowOf(a.ReadyAt), windowOf(b.ReadyAt); !w.Equal(v) {
			return w.Before(v)
		}
		return l.active.before(a, b)
	}
	// The order of erring is by ready only, and does not change.
	heap.Init(&l.active)
	heap.Init(&l.backing)
}

// clear empties the heaps. The caller adds the items again.
func (l *lines) clear() { l.active.items, l.backing.items, l.erring.items = nil, nil, nil }

// lineOf returns the heap of an Active or Backoff item.
func (l *lines) lineOf(item *Item) *ordered {
	switch {
	case item.place == Active:
		return &l.active
	case item.Failed > 0 || item.Patient:
		return &l.erring
	}
	return &l.backing
}

// addItem puts an item into its heap, and removeItem removes it. The item's place must have been
// set before, and must not change in between.
func (l *lines) addItem(item *Item) { heap.Push(l.lineOf(item), item) }

// rested returns an item with a finished back-off, or nil.
func (l *lines) rested(now time.Time) *Item {
	for _, from := range []*ordered{&l.backing, &l.erring} {
		if from.Len() > 0 && !from.items[0].ReadyAt.After(now) {
			return from.items[0]
		}
	}
	return nil
}

// next returns the next item to decide, or nil. early allows an item still in back-off after a
// rejection.
func (l *lines) next(now time.Time, early bool) *Item {
	switch {
	case l.active.Len() > 0:
		return l.active.items[0]
	case l.backing.Len() > 0 && early:
		if item := l.backing.items[0]; !now.Before(item.restedAt()) {
			return item
		}
	}
	return nil
}

// nextReady returns the earliest time at which next returns an item, or zero for now. ok is false
// if no heap has such an item.
func (l *lines) nextReady(early bool) (at time.Time, ok bool) {
	if l.active.Len() > 0 {
		return time.Time{}, true
	}
	if l.backing.Len() > 0 && early {
		at, ok = l.backing.items[0].restedAt(), true
	}

	for _, from := range []*ordered{&l.backing, &l.erring} {
		if from.Len() > 0 && (!ok || from.items[0].ReadyAt.Before(at)) {
			at, ok = from.items[0].ReadyAt, true
		}
	}
	return at, ok
}

// ahead counts the active items more urgent than the given active item.
func (l *lines) ahead(item *Item) (n int) {
	for _, other := range l.active.items {
		if l.active.before(other, item) {
			n++
		}
	}
	return n
}

// ordered is a heap of items for container/heap, ordered by before. Each item stores its index in
// the heap, so that any item can be removed without a search.
type ordered struct {
	items  []*Item
	before func(a, b *Item) bool
}

func (o *ordered) Len() int           { return len(o.items) }
func (o *ordered) Less(i, j int) bool { return o.before(o.items[i], o.items[j]) }
func (o *ordered) Swap(i, j int) {
	o.items[i], o.items[j] = o.items[j], o.items[i]
	o.items[i].index, o.items[j].index = i, j
}
func (o *ordered) Push(x any) {
	item := x.(*Item)
	item.index = len(o.items)
	o.items = append(o.items, item)
}
func (o *ordered) Pop() any {
	last := len(o.items) - 1
	item := o.items[last]
	o.items[last] = nil
	o.items = cluster.ShrunkList(o.items[:last])
	item.index = -1
	return item
}
