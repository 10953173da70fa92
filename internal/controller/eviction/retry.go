package eviction

import (
	"hash/fnv"
	"time"
)

// retryLater ends an attempt that did not succeed.
func (c *Core) retryLater(now time.Time, a *attempt, after time.Duration) {
	p := a.pod
	p.tries++
	wait := max(after, backOff(p.tries, firstRetry, lastRetry, string(p.UID)))
	at := now.Add(wait)
	if over := p.due.At.Add(c.options.BudgetsFor); a.evicts && c.options.BudgetsFor > 0 && now.Before(over) {
		at = earlierOf(at, over)
	}
	c.endAttempt(a, at)
}

// retryRead ends an attempt that could not read. The API is in trouble for all pods alike, so
// nothing is attempted for a while.
func (c *Core) retryRead(now time.Time, a *attempt, answer Answered) {
	if !now.Before(c.pausedUntil) { // those in flight together fail together, and count once
		c.unanswered++
		c.pausedUntil = now.Add(max(min(answer.RetryAfter, lastRetry), backOff(c.unanswered, firstPause, lastPause, "")))
	}
	p := a.pod
	p.tries++
	c.endAttempt(a, now.Add(backOff(p.tries, firstPause, lastPause, string(p.UID))))
}

func (c *Core) endAttempt(a *attempt, notYet time.Time) {
	c.underway--
	p := a.pod
	p.attempt, p.notYet = nil, notYet
	if p.cancels {
		c.cancelEviction(p)
	}
	c.enqueuePod(p)
}

// backOff is first after the first attempt, then twice as long each time up to last. It is
// shortened by up to a fifth, by name, so that attempts that failed together do not return
// together.
func backOff(tries int, first, last time.Duration, name string) time.Duration {
	wait := min(first<<min(tries-1, 20), last)
	h := fnv.New32a()
	h.Write([]byte(name))
	h.Write([]byte{byte(tries)})
	return wait - wait*time.Duration(h.Sum32()%200)/1000
}
