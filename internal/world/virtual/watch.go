// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"slices"
	"time"
)

// Watch delivers the changes of objects to a process in their order, late, until it breaks. It then
// resumes, or begins with a list.
type Watch struct {
	// List shows all current objects.
	List func()
	// Lost, Polled and Back, if set, are called when the process notices that the watch is broken,
	// after each list while the watch is refused, and when it is restored.
	Lost, Polled, Back func()
	// A change is delivered after Lag, and up to Jitter later.
	Lag, Jitter time.Duration

	process process
	time    *Time
	until   time.Time // earliest delivery
	broken  bool
	lost    bool // the process has noticed that the watch is broken
	breaks  int  // changes scheduled before a break are dropped
	last    time.Time
	unshown []func() // undelivered changes
}

// process is a Process, whatever its types are.
type process interface {
	Running() bool
	receive(show func())
	later(wait time.Duration, do func())
}

// NewWatch adds a watch to a process.
func NewWatch[E, A any](p *Process[E, A], lag time.Duration, list func()) *Watch {
	w := &Watch{List: list, Lag: lag, process: p, time: p.Time}
	p.watches = append(p.watches, w)
	return w
}

// Show schedules the delivery of a change: show passes it to the process. Without a running
// process, there is no watch, and the change is dropped.
func (w *Watch) Show(show func()) {
	if !w.process.Running() {
		return
	}
	w.unshown = append(w.unshown, show)
	if !w.broken {
		w.scheduleNext()
	}
}

// scheduleNext schedules the delivery of the next change.
func (w *Watch) scheduleNext() {
	at := w.time.Now.Add(w.Lag)
	if w.Jitter > 0 {
		at = at.Add(w.time.Between(0, w.Jitter))
	}
	at = slices.MaxFunc([]time.Time{at, w.last, w.until}, time.Time.Compare)
	w.last = at
	breaks := w.breaks
	w.time.After(at.Sub(w.time.Now), func() {
		if w.breaks == breaks && len(w.unshown) > 0 {
			next := w.unshown[0]
			w.unshown = w.unshown[1:]
			w.process.receive(next)
		}
	})
}

// Hold delays all further changes until the given time.
func (w *Watch) Hold(until time.Time) { w.until = until }

// Break breaks the watch, without notice to the process. Further changes wait for Restore.
func (w *Watch) Break() {
	if !w.process.Running() || w.broken {
		return
	}
	w.broken, w.last = true, time.Time{}
	w.breaks++
}

// lose breaks the watch, and notifies the process.
func (w *Watch) lose() {
	if w.process.Running() && !w.broken {
		w.lost = true
		w.notify(w.Lost)
	}
	w.Break()
}

// back notifies the process that a lost watch is restored.
func (w *Watch) back() {
	if w.lost {
		w.lost = false
		w.notify(w.Back)
	}
}

func (w *Watch) notify(of func()) {
	if of != nil {
		w.process.receive(of)
	}
}

// Broken reports whether the watch is broken.
func (w *Watch) Broken() bool { return w.broken }

// Restore ends a break: the watch resumes with the missed changes, or begins with a list.
func (w *Watch) Restore(lists bool) {
	switch {
	case !w.broken:
	case lists:
		w.list(true)
	default:
		w.broken = false
		w.back()
		for range w.unshown {
			w.scheduleNext()
		}
	}
}

// Cut breaks the watch for a time; see Restore. It has no effect on a broken watch.
func (w *Watch) Cut(d time.Duration, lists bool) {
	if w.broken {
		return
	}
	w.lose()
	w.whileBroken(d, func() { w.Restore(lists) })
}

// Refuse breaks the watch, as an API server that refuses watches does, and lists at the given
// interval until Restore.
func (w *Watch) Refuse(every time.Duration) {
	w.lose()
	w.whileBroken(every, func() {
		w.list(false)
		w.Refuse(every)
	})
}

// whileBroken schedules a call that is dropped if this break has ended by then.
func (w *Watch) whileBroken(wait time.Duration, do func()) {
	breaks := w.breaks
	w.process.later(wait, func() {
		if w.broken && w.breaks == breaks {
			do()
		}
	})
}

// list drops undelivered changes, whose outcome the list contains, and lists.
func (w *Watch) list(opens bool) {
	lost := w.lost
	w.reset()
	w.lost, w.broken = lost, !opens
	w.process.receive(w.List)
	if opens {
		w.back()
	} else {
		w.notify(w.Polled)
	}
}

// reset drops undelivered changes and ends a break.
func (w *Watch) reset() {
	w.breaks++
	w.unshown, w.last, w.broken, w.lost = nil, time.Time{}, false, false
}
