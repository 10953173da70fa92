package simulate

import (
	"container/heap"
	"slices"
	"time"
)

// agenda is a heap of future events, by time.
type agenda []appointment

type appointment struct {
	at     time.Duration
	number int // those at the same time happen in the order in which they were made
	do     func()
}

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].number < a[j].number
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

// Push and Pop are for package heap.
func (a *agenda) Push(x any) { *a = append(*a, x.(appointment)) }

// Pop takes the last one.
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// at schedules a call at a time from the beginning, or now if that has passed.
func (w *World) at(at time.Duration, do func()) {
	w.appointments++
	heap.Push(&w.agenda, appointment{max(at, w.now), w.appointments, do})
}

// upcoming is when the next event happens.
func (w *World) upcoming() (at time.Duration, ok bool) {
	sooner := func(t time.Duration, there bool) {
		if there && (!ok || t < at) {
			at, ok = t, true
		}
	}
	if len(w.agenda) > 0 {
		sooner(w.agenda[0].at, true)
	}
	sooner(w.nextEviction())
	if at, ok := w.core.Due(); ok {
		sooner(max(at.Sub(w.start), w.now), true)
	}
	if w.health != nil {
		sooner(w.health.next(w))
	}
	return at, ok
}

// Advance lets time pass until the given time from the beginning: events happen, controllers
// replace pods that have gone, and these and all other pending pods are tried.
func (w *World) Advance(until time.Duration) {
	w.settle()
	for !w.halted() {
		at, ok := w.upcoming()
		if !ok || at > until {
			break
		}
		w.step(at)
	}
	w.now = max(w.now, until)
}

// step carries out the events of one time.
func (w *World) step(at time.Duration) {
	w.now = max(w.now, at)
	log := w.c.Log.Len()
	for len(w.agenda) > 0 && w.agenda[0].at <= w.now {
		heap.Pop(&w.agenda).(appointment).do()
	}
	if w.health != nil {
		w.health.step(w)
	}
	w.evictDue()
	decided := w.decided
	w.settle()
	if log != w.c.Log.Len() || decided != w.decided || w.touched {
		w.touched = false
		w.sample()
	}
}

// AdvanceUntilQuiet lets time pass until nothing is left to happen except for evictions of pods
// that have returned to a node where they may not stay, and at most until then. It reports whether
// the world became quiet.
func (w *World) AdvanceUntilQuiet(until time.Duration) bool {
	w.settle()
	for !w.halted() {
		at, ok := w.upcoming()
		onlyAgain := len(w.agenda) == 0 && !slices.ContainsFunc(w.leaving, func(l leaving) bool { return l.counts() && !l.again })
		switch {
		case !ok || onlyAgain:
			return true
		case at > until:
			return false
		}
		w.step(at)
	}
	return false
}
