// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Moment summarizes a span of time: its beginning in milliseconds, the numbers of evictions,
// preemptions and node failures, and the maximum number of pending pods. It is an array because a
// page gets thousands. For example, [1764000000000 2 0 1 17] is two evictions and one failure of a
// node within ten seconds, with up to 17 pods pending.
type Moment [5]int64

// Indexes into a Moment.
const (
	momentAt = iota
	evictions
	preemptions
	failures
	pending
)

const (
	// Every is the duration of a Moment. Moments are longer in a recording that exceeds the kept
	// history.
	Every = 10 * time.Second
	// mostMoments bounds the kept history: six hours of ten seconds each.
	mostMoments = 2160
)

// history holds the last moments, in order. A span without changes is omitted, since the number of
// pending pods stays the same. The array holds up to twice mostMoments, so that old moments are
// dropped rarely.
type history struct {
	moments []Moment
	every   time.Duration // 0: Every
	pending int64         // current number; moments hold the maximum
	unsent  int           // number of recent moments changed since the last newMoments
}

// momentAt returns the moment of a time, creating it if needed, and marks it as changed. A time
// before the last moment, for example after a clock was set back, belongs to the last moment.
func (h *history) momentAt(now time.Time) *Moment {
	every := h.every
	if every == 0 {
		every = Every
	}
	at := now.Truncate(every).UnixMilli()
	last := len(h.moments) - 1
	switch {
	case last >= 0 && h.moments[last][momentAt] >= at:
		h.unsent = max(h.unsent, 1)
		return &h.moments[last]
	case last >= 0 && h.moments[last][pending] != h.pending && h.moments[last][momentAt]+every.Milliseconds() < at:
		h.addMoment(Moment{momentAt: h.moments[last][momentAt] + every.Milliseconds(),
			pending: h.pending}) // the maximum of the last moment does not apply to the time after it
	}
	h.addMoment(Moment{momentAt: at, pending: h.pending})
	return &h.moments[len(h.moments)-1]
}

// addMoment adds a moment, and drops the older half of a full history.
func (h *history) addMoment(m Moment) {
	if len(h.moments) == 2*mostMoments {
		h.moments = append([]Moment(nil), h.lastMoments()...)
	}
	h.moments = append(h.moments, m)
	h.unsent++
}

// countEvent counts one eviction, preemption or failure.
func (h *history) countEvent(now time.Time, what int) { h.momentAt(now)[what]++ }

// notePending records the number of pending pods.
func (h *history) notePending(now time.Time, n int) {
	if int64(n) == h.pending && len(h.moments) > 0 {
		return
	}
	// Get the moment before updating the number: a new moment begins with the old number.
	m := h.momentAt(now)
	h.pending = int64(n)
	m[pending] = max(m[pending], h.pending)
}

// newMoments returns the moments changed since the last call. The list is new. A continuing moment
// is included after each of its changes.
func (h *history) newMoments() []Moment {
	list := append([]Moment(nil), h.moments[max(0, len(h.moments)-h.unsent):]...)
	h.unsent = 0
	return list
}

// lastMoments returns the kept moments. The slice belongs to the history.
func (h *history) lastMoments() []Moment { return h.moments[max(0, len(h.moments)-mostMoments):] }
