// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pacing

import (
	"hash/fnv"
	"time"
)

// Backoff is a range of delays between attempts: First after the first attempt, doubled after each
// further attempt, at most Last.
type Backoff struct{ First, Last time.Duration }

// After returns the delay after the given number of attempts, which starts at 1. Delays are
// shortened by up to a fifth, depending on key, so that requests that failed together are not
// repeated together. The first delay of length Last is shortened by up to nine tenths: from then on
// repetitions are spread evenly, and thousands of objects cause a constant rate of requests.
//
// From 100 ms to 5 s, before shortening: 100, 200, 400, 800, 1600, 3200, 5000, 5000, ... ms.
//
// The result depends on the arguments only, because a replay must repeat each decision.
func (b Backoff) After(attempts int, key string) time.Duration {
	attempts = max(attempts, 1)
	delay, most := b.delay(attempts), uint32(200)
	if delay == b.Last && (attempts == 1 || b.delay(attempts-1) < b.Last) {
		most = 900
	}
	h := fnv.New32a()
	h.Write([]byte(key))
	h.Write([]byte{byte(attempts)})
	return delay - delay*time.Duration(h.Sum32()%most)/1000
}

func (b Backoff) delay(attempts int) time.Duration {
	return min(b.First<<min(attempts-1, 20), b.Last)
}

// Pace spaces the requests about one object. A core calls Sent with each request and sends the next
// one only when Ready. The zero value is ready.
//
// Responses do not affect the pace: requests that succeed without effect are spaced like failed
// requests.
type Pace struct {
	// Attempts counts the requests since the last reset.
	Attempts int `json:"attempts,omitempty"`
	// Next is the earliest time of the next request.
	Next time.Time `json:"next,omitzero"`
}

// Ready reports whether a request may be sent.
func (p *Pace) Ready(now time.Time) bool { return !now.Before(p.Next) }

// Sent records a request and schedules the next one. After a minute in which a request was allowed
// and none was sent, the delays start over.
func (p *Pace) Sent(now time.Time, b Backoff, key string) {
	if p.Attempts > 0 && now.Sub(p.Next) >= forget {
		p.Attempts = 0
	}
	p.Attempts++
	p.Next = now.Add(b.After(p.Attempts, key))
}

// Delay postpones the next request until at least the given time, for a response with Retry-After.
func (p *Pace) Delay(until time.Time) { p.Next = Later(until, p.Next) }

// Reset forgets earlier requests. A core resets the pace when it has a different request to send
// because the object or its own goal changed, never because a request succeeded.
func (p *Pace) Reset() { *p = Pace{} }

// forget is the time without requests after which delays start over.
const forget = time.Minute
