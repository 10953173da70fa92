// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
)

// pause stops all attempts while the API cannot be read: the outage affects all pods alike.
type pause struct {
	failures int       // consecutive failures; concurrent ones count once
	until    time.Time // earliest time of the next attempt
}

// extend handles a failed read. Concurrent reads usually fail together, so a failure during the
// pause does not extend it.
func (p *pause) extend(now time.Time, retryAfter time.Duration) {
	if now.Before(p.until) {
		return
	}
	p.failures++
	p.until = now.Add(max(min(retryAfter, lastRetry), pacing.Backoff{First: firstPause, Last: lastPause}.After(p.failures, "")))
}

// retryLater ends an attempt whose delete failed.
func (e *evictor) retryLater(now time.Time, a *attempt, after time.Duration) {
	p := a.pod
	p.tries++
	wait := max(after, pacing.Backoff{First: firstRetry, Last: lastRetry}.After(p.tries, string(p.UID)))
	at := now.Add(wait)
	if over := p.due.At.Add(e.options.BudgetsFor); a.evicts && e.options.BudgetsFor > 0 && now.Before(over) {
		at = pacing.Earlier(at, over)
	}
	e.endAttempt(a, at)
}

// retryRead ends an attempt whose read failed. The failure may be an outage that affects all pods,
// so all attempts pause.
func (e *evictor) retryRead(now time.Time, a *attempt, answer Answered) {
	e.pause.extend(now, answer.RetryAfter)
	after := min(answer.RetryAfter, lastRetry)
	p, backoff := a.pod, pacing.Backoff{First: firstRetry, Last: lastRetry}
	if answer.Unserved {
		backoff.Last = lastPause // frequent probes do not load a server that is down
	}
	if a.step == readingNode {
		if p.node.reads.Ready(now) {
			p.node.reads.Sent(now, backoff, p.node.name)
		}
		p.node.reads.Delay(now.Add(after))
	}
	p.tries++
	e.endAttempt(a, now.Add(max(after, backoff.After(p.tries, string(p.UID)))))
}

// endAttempt ends an attempt without an accepted delete. A cancellation during the attempt is
// recorded only here, because until now the pod might still have been deleted.
func (e *evictor) endAttempt(a *attempt, notYet time.Time) {
	e.underway--
	p := a.pod
	p.attempt, p.notYet = nil, notYet
	if p.cancels {
		e.deadlines.cancelEviction(p)
	}
	e.deadlines.enqueuePod(p)
}
