// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import "time"

// clock converts between the Core's own clock and the wall clock used for times in objects. The
// Core's clock is never adjusted, so a correction of a wall clock cannot move a deadline.
type clock struct {
	wall func(now time.Time) time.Time // Options.Wall; nil: both are the same
}

// wallTime returns the wall-clock time of a moment.
func (c clock) wallTime(now time.Time) time.Time {
	if c.wall == nil {
		return now
	}
	return c.wall(now)
}

// toClock converts a time written into an object to the Core's clock. The result does not change
// when wall clocks are adjusted, and is never in the future.
func (c clock) toClock(now, written time.Time) time.Time {
	return earlierOf(now, now.Add(written.Sub(c.wallTime(now))))
}

// toClockSince is toClock for an event that has just happened, unless it may have been missed.
// Times in objects have whole seconds: an event within the written second, before it was observed,
// counts from the end of that second, so that pods are never evicted early.
func (c clock) toClockSince(now, written time.Time, missed bool) time.Time {
	if missed {
		return c.toClock(now, written)
	}
	return c.toClock(now, written.Add(time.Second))
}

// laterOf returns the later of two times.
func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// earlierOf returns the earlier of two times.
func earlierOf(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
