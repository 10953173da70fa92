// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"math"
	"time"
)

// Time is a time of a pod, in a third of the memory of a [time.Time]: nanoseconds since 1970. Zero
// is an unset time, and precedes every set time. The very beginning of 1970 is stored as one
// nanosecond later.
type Time int64

// TimeOf converts a time.
func TimeOf(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	nanoseconds := t.UnixNano()
	if nanoseconds == 0 {
		return 1
	}
	return Time(nanoseconds)
}

// IsZero reports whether the time is unset.
func (t Time) IsZero() bool { return t == 0 }

// Compare orders times, the earliest first.
func (t Time) Compare(o Time) int { return cmp.Compare(t.order(), o.order()) }

func (t Time) order() int64 {
	if t == 0 {
		return math.MinInt64
	}
	return int64(t)
}

// UnixNano returns the nanoseconds since 1970.
func (t Time) UnixNano() int64 { return int64(t) }

// Time converts back, to local time like the API machinery.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t))
}
