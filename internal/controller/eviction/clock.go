// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
)

// clock converts between the Core's own clock and the wall clock used for times in objects. The
// Core's clock is never adjusted, so a correction of a wall clock cannot move a deadline.
type clock struct {
	wall func(now time.Time) time.Time // Options.Wall; nil: both clocks are the same
}

// wallTime converts a time of the Core's clock to the wall clock.
func (c clock) wallTime(now time.Time) time.Time {
	if c.wall == nil {
		return now
	}
	return c.wall(now)
}

// toClock converts a time written into an object to the Core's clock. The result is never in the
// future. Callers keep it, so that later adjustments of wall clocks do not change it.
func (c clock) toClock(now, written time.Time) time.Time {
	return pacing.Earlier(now, now.Add(written.Sub(c.wallTime(now))))
}

// toClockSince is toClock for the time of an observed event. Times in objects are truncated to
// whole seconds, so the event counts from the end of the written second, or from now if that is
// earlier: pods are never evicted early. If missed is set, events may have been missed, and the
// written time counts.
func (c clock) toClockSince(now, written time.Time, missed bool) time.Time {
	if missed {
		return c.toClock(now, written)
	}
	return c.toClock(now, written.Add(time.Second))
}
