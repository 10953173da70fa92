// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"container/heap"
	"time"
)

// timer wakes a node or a pod. It lives inside its owner; the zero timer is not set.
type timer struct {
	at   time.Time
	slot int // 1 + index in the heap; 0 when not set
	fire func(now time.Time)
}

// timers is a heap of set timers: one structure for the heartbeats of 5,000 nodes and all waits of
// pods, instead of a goroutine or runtime timer for each.
type timers []*timer

// setTimer sets or moves a timer. A timer in the past fires with the next Tick.
func (h *timers) setTimer(t *timer, at time.Time) {
	t.at = at
	if t.slot > 0 {
		heap.Fix(h, t.slot-1)
	} else {
		heap.Push(h, t)
	}
}

// clearTimer stops a timer; it ignores an unset one.
func (h *timers) clearTimer(t *timer) {
	if t.slot > 0 {
		heap.Remove(h, t.slot-1)
	}
}

// nextTime returns the earliest time of all timers; false if none is set.
func (h timers) nextTime() (time.Time, bool) {
	if len(h) == 0 {
		return time.Time{}, false
	}
	return h[0].at, true
}

// fireDue fires the due timers, earliest first. A timer set again by its own function fires again
// if it is due.
func (h *timers) fireDue(now time.Time) {
	for len(*h) > 0 && !(*h)[0].at.After(now) {
		heap.Pop(h).(*timer).fire(now)
	}
}

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i+1, j+1
}
func (h *timers) Push(x any) {
	*h = append(*h, x.(*timer))
	x.(*timer).slot = len(*h)
}
func (h *timers) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.slot = 0
	return t
}
