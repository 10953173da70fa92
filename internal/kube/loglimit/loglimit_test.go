// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package loglimit

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestClockThatIsSetBack verifies that a line is not suppressed for an hour if the clock is set
// back by an hour.
func TestClockThatIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var line Line
		line.next.Store(time.Now().Add(time.Hour + Every).UnixNano()) // set before the clock was set back
		if !line.Due() || line.Due() {
			t.Error("want it due, once")
		}
	})
}

func TestFirstAndThenOneEachWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var line Line
		due := 0
		for range 600 {
			if line.Due() {
				due++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if due != 6 {
			t.Errorf("due %d times in a minute, want 6", due)
		}
	})
}
