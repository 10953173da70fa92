package model

import "time"

// Moment is what happened in a span of time, by the time at which it began in milliseconds: At, and
// how many evictions, preemptions and nodes that failed there were, and pods pending, at most. An
// array, because a page is sent thousands.
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

// history is the last moments, in their order. A time in which nothing differed has none: what was
// pending goes on.
type history struct {
	moments []Moment
	every   time.Duration // 0: Every
	pending int64         // now; a moment has the most
	told    int           // of moments, how many at the end have changed since they were told
}

// at is the moment of a time. Time that goes back, as clocks do, is the last one's.
func (h *history) at(now time.Time) *Moment {
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
		h.add(Moment{momentAt: h.moments[last][momentAt] + every.Milliseconds(), pending: h.pending}) // the most was not for longer
	}
	h.add(Moment{momentAt: at, pending: h.pending})
	return &h.moments[len(h.moments)-1]
}

func (h *history) add(m Moment) {
	if len(h.moments) == 2*mostMoments {
		h.moments = append([]Moment(nil), h.last()...)
	}
	h.moments = append(h.moments, m)
	h.told++
}

func (h *history) count(now time.Time, what int) { h.at(now)[what]++ }

// waiting notes how many pods are pending.
func (h *history) waiting(now time.Time, n int) {
	if int64(n) == h.pending && len(h.moments) > 0 {
		return
	}
	m := h.at(now)
	h.pending = int64(n)
	m[pending] = max(m[pending], h.pending)
}

// news are the moments that changed since the last call.
func (h *history) news() []Moment {
	list := append([]Moment(nil), h.moments[max(0, len(h.moments)-h.told):]...)
	h.told = 0
	return list
}

func (h *history) last() []Moment { return h.moments[max(0, len(h.moments)-mostMoments):] }
