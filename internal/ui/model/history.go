package model

import "time"

// Moment is what happened in a span of time: when it began, in milliseconds; how many evictions,
// preemptions and failures of nodes there were; and how many pods were pending at most. It is an
// array because a page gets thousands.
type Moment [5]int64

// Places in a Moment.
const (
	momentAt = iota
	evictions
	preemptions
	failures
	pending
)

const (
	// Every is how long a Moment lasts; a recording that is longer than what is kept has longer
	// ones.
	Every = 10 * time.Second
	// mostMoments bounds what is kept: six hours of ten seconds each.
	mostMoments = 2160
)

// history is the last moments, in their order. A span in which nothing changed has none: the number
// of pending pods stays.
type history struct {
	moments []Moment
	every   time.Duration // 0: Every
	pending int64         // now; a moment has the most
	told    int           // how many of the last moments have changed since news returned them
}

// momentAt returns the moment of a time. A time before the last moment, as when a clock is set
// back, counts as the last moment's.
func (h *history) momentAt(now time.Time) *Moment {
	every := h.every
	if every == 0 {
		every = Every
	}
	at := now.Truncate(every).UnixMilli()
	last := len(h.moments) - 1
	switch {
	case last >= 0 && h.moments[last][momentAt] >= at:
		h.told = max(h.told, 1)
		return &h.moments[last]
	case last >= 0 && h.moments[last][pending] != h.pending && h.moments[last][momentAt]+every.Milliseconds() < at:
		h.addMoment(Moment{momentAt: h.moments[last][momentAt] + every.Milliseconds(),
			pending: h.pending}) // the highest number was reached in the last moment only
	}
	h.addMoment(Moment{momentAt: at, pending: h.pending})
	return &h.moments[len(h.moments)-1]
}

func (h *history) addMoment(m Moment) {
	if len(h.moments) == 2*mostMoments {
		h.moments = append([]Moment(nil), h.lastMoments()...)
	}
	h.moments = append(h.moments, m)
	h.told++
}

func (h *history) countEvent(now time.Time, what int) { h.momentAt(now)[what]++ }

// notePending records how many pods are pending.
func (h *history) notePending(now time.Time, n int) {
	if int64(n) == h.pending && len(h.moments) > 0 {
		return
	}
	m := h.momentAt(now)
	h.pending = int64(n)
	m[pending] = max(m[pending], h.pending)
}

// newMoments are the moments that changed since the last call.
func (h *history) newMoments() []Moment {
	list := append([]Moment(nil), h.moments[max(0, len(h.moments)-h.told):]...)
	h.told = 0
	return list
}

func (h *history) lastMoments() []Moment { return h.moments[max(0, len(h.moments)-mostMoments):] }
