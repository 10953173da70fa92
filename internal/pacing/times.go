// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pacing

import (
	"context"
	"time"
)

// Wall converts times of a core's own clock, which is never adjusted, to wall-clock time. With nil,
// both clocks are the same.
type Wall func(now time.Time) time.Time

// At returns the wall-clock time at a time of the core's clock.
func (w Wall) At(now time.Time) time.Time {
	if w == nil {
		return now
	}
	return w(now)
}

// Later returns the later of two times. The zero time is earlier than any other.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Sooner returns the earlier of two times. The zero time stands for no time.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Sleep waits for a duration, and returns false if the context ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Signal puts an element into a channel with room for one, unless it already has one. Any number of
// signals wakes the receiver once.
func Signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
