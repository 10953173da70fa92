// Package seldom keeps a log readable when the same thing fails again and
// again: the first failure is for all to see, since it may be a missing right,
// and then one each Every.
package seldom

import (
	"sync/atomic"
	"time"
)

// Every is how often a line that repeats is for all to see.
const Every = 10 * time.Second

// Line is a line of a log. The zero Line is due.
type Line struct {
	next atomic.Int64 // when it is due again, in Unix nanoseconds
}

// Due reports whether the line is for all to see now.
func (l *Line) Due() bool {
	now, next := time.Now().UnixNano(), l.next.Load()
	return now >= next && l.next.CompareAndSwap(next, now+int64(Every))
}
