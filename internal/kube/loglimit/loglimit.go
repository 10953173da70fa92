// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package loglimit keeps a log readable during a repeated failure. The first occurrence is logged
// at the usual level, since it may be a missing permission, and then at most one occurrence per
// interval (Every).
package loglimit

import (
	"sync/atomic"
	"time"
)

// Every is the interval between repetitions of a line at the usual level.
const Every = 10 * time.Second

// Line is a log line that may repeat. The zero Line is due.
type Line struct {
	next atomic.Int64 // time of the next line, in Unix nanoseconds
}

// Due reports whether to log the line at the usual level now.
func (l *Line) Due() bool {
	now, next := time.Now().UnixNano(), l.next.Load()
	due := now >= next || next-now > int64(Every) // or the clock was set back
	return due && l.next.CompareAndSwap(next, now+int64(Every))
}
