// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world/agenda"
)

// Time is the clock of a world, with its future events and its processes.
type Time struct {
	Now  time.Time
	Rand *rand.Rand
	// Trace, if set, is called with every event.
	Trace func(at time.Time, what string)

	agenda    agenda.Agenda
	processes []waker
}

// waker is a Process, whatever its types are.
type waker interface {
	wake() (at time.Time, ok bool)
	tick()
}

// NewTime returns a clock that starts at the given time.
func NewTime(begin time.Time, seed, stream uint64) *Time {
	return &Time{Now: begin, Rand: rand.New(rand.NewPCG(seed, stream))}
}

// After schedules a call, which is made during Run or RunUntil, and never immediately.
func (t *Time) After(wait time.Duration, do func()) { t.agenda.Add(t.Now.Add(max(0, wait)), do) }

// Run lets the duration d pass.
func (t *Time) Run(d time.Duration) { t.RunUntil(t.Now.Add(d)) }

// RunUntil lets time pass, including scheduled events and the Ticks of processes. At each instant,
// the events are first, as in live processes, which read their inboxes before a Tick.
//
// RunUntil panics if a core endlessly reacts to its own requests, or requests another Tick for the
// instant of the last one.
func (t *Time) RunUntil(end time.Time) {
	for steps := 0; ; steps++ {
		if steps > 20_000_000 {
			panic("the core does not come to rest")
		}
		next, some := t.agenda.Next()
		p, wake := t.firstWake()

		switch {
		case some && !next.After(end) && (p == nil || !wake.Before(next)):
			t.advance(next)
			t.agenda.RunFirst()
		case p != nil && !wake.After(end):
			t.advance(wake)
			p.tick()
			if again, ok := p.wake(); ok && !again.After(t.Now) {
				panic(fmt.Sprintf("the core requests a Tick for %v after the Tick at %v", again, t.Now))
			}
		default:
			t.advance(end)
			return
		}
	}
}

// firstWake returns the process with the earliest Tick, or nil.
func (t *Time) firstWake() (first waker, at time.Time) {
	for _, p := range t.processes {
		if wake, ok := p.wake(); ok && (first == nil || wake.Before(at)) {
			first, at = p, wake
		}
	}
	return first, at
}

// advance sets the time, which never decreases.
func (t *Time) advance(to time.Time) { t.Now = pacing.Later(to, t.Now) }

// Tracef adds an event to the trace.
func (t *Time) Tracef(format string, args ...any) {
	if t.Trace != nil {
		t.Trace(t.Now, fmt.Sprintf(format, args...))
	}
}

// Between draws a duration from least to most, both included. It draws nothing if they are equal.
func (t *Time) Between(least, most time.Duration) time.Duration {
	if least == most {
		return least
	}
	return least + time.Duration(t.Rand.Int64N(int64(most-least)+1))
}

// Chance draws true with that probability. It draws nothing if the result is certain, so that a
// disabled fault does not change the rest of a run.
func (t *Time) Chance(p float64) bool { return p >= 1 || p > 0 && t.Rand.Float64() < p }
