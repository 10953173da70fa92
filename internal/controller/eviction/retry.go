package eviction

import (
	"hash/fnv"
	"time"
)

// pause stops all attempts while the API cannot be read: it is in trouble for all pods alike.
type pause struct {
	failures int       // reads that failed in a row
	until    time.Time // no attempt begins before
}

// extend is for a read that failed. Those in flight together fail together, and count once.
func (p *pause) extend(now time.Time, retryAfter time.Duration) {
	if now.Before(p.until) {
		return
	}
	p.failures++
	p.until = now.Add(max(min(retryAfter, lastRetry), backOff(p.failures, firstPause, lastPause, "")))
}

// retryLater ends an attempt that did not succeed.
func (e *evictor) retryLater(now time.Time, a *attempt, after time.Duration) {
	p := a.pod
	p.tries++
	wait := max(after, backOff(p.tries, firstRetry, lastRetry, string(p.UID)))
	at := now.Add(wait)
	if over := p.due.At.Add(e.options.BudgetsFor); a.evicts && e.options.BudgetsFor > 0 && now.Before(over) {
		at = earlierOf(at, over)
	}
	e.endAttempt(a, at)
}

// retryRead ends an attempt that could not read. The API is in trouble for all pods alike, so
// nothing is attempted for a while.
func (e *evictor) retryRead(now time.Time, a *attempt, answer Answered) {
	e.pause.extend(now, answer.RetryAfter)
	p := a.pod
	p.tries++
	e.endAttempt(a, now.Add(backOff(p.tries, firstPause, lastPause, string(p.UID))))
}

// endAttempt ends an attempt without a delete. If the pod may stay by now, that is recorded here:
// while an attempt held it, it was not known whether the delete would come first.
func (e *evictor) endAttempt(a *attempt, notYet time.Time) {
	e.underway--
	p := a.pod
	p.attempt, p.notYet = nil, notYet
	if p.cancels {
		e.deadlines.cancelEviction(p)
	}
	e.deadlines.enqueuePod(p)
}

// backOff is first after the first attempt, then twice as long each time up to last. It is
// shortened by up to a fifth, by name, so that attempts that failed together do not return
// together. The first pause that would be last is shortened by up to nine tenths: from then on
// attempts are spread evenly, and thousands of pods ask no oftener in one second than in another.
//
// For deletes (100 ms, 5 s), before they are shortened: 100, 200, 400, 800, 1600, 3200, 5000, 5000,
// ... ms.
func backOff(tries int, first, last time.Duration, name string) time.Duration {
	wait, most := min(first<<min(tries-1, 20), last), uint32(200)
	if wait == last && (tries == 1 || first<<min(tries-2, 20) < last) {
		most = 900
	}
	// By name and number and not at random: the Core must decide the same in a replay.
	h := fnv.New32a()
	h.Write([]byte(name))
	h.Write([]byte{byte(tries)})
	return wait - wait*time.Duration(h.Sum32()%most)/1000
}
