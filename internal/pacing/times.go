// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pacing

import "time"

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
