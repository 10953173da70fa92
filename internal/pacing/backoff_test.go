// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pacing

import (
	"fmt"
	"testing"
	"time"
)

func TestDelaysDoubleAndSpread(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Last: 5 * time.Second}
	for attempts := 1; attempts <= 30; attempts++ {
		longest := b.delay(attempts)
		shortest := longest * 8 / 10
		if attempts == 7 { // the first delay of length Last
			shortest = longest / 10
		}
		delays := map[time.Duration]bool{}
		for pod := range 200 {
			d := b.After(attempts, fmt.Sprint("pod-", pod))
			if d > longest || d < shortest {
				t.Errorf("attempt %d: delay %s, expected %s to %s", attempts, d, shortest, longest)
			}
			delays[d] = true
		}
		if len(delays) < 50 {
			t.Errorf("attempt %d: only %d different delays for 200 pods", attempts, len(delays))
		}
	}
}

func TestRequestsAreBoundedWhateverTheResponses(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Last: 5 * time.Second}
	var p Pace
	now, sent := time.Unix(0, 0), []time.Time{}
	for range 600_000 { // ten minutes in steps of a millisecond
		if p.Ready(now) {
			p.Sent(now, b, "pod")
			sent = append(sent, now)
		}
		now = now.Add(time.Millisecond)
	}
	for i := range sent {
		if i >= 20 && sent[i].Sub(sent[i-20]) < time.Minute {
			t.Fatalf("21 requests within %s", sent[i].Sub(sent[i-20]))
		}
	}
	if len(sent) < 100 {
		t.Errorf("only %d requests in ten minutes", len(sent))
	}
}

func TestDelaysStartOverAfterAQuietMinute(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Last: 5 * time.Second}
	var p Pace
	now := time.Unix(0, 0)
	for range 10 {
		p.Sent(now, b, "pod")
		now = p.Next
	}
	p.Sent(now.Add(59*time.Second), b, "pod")
	if p.Attempts != 11 {
		t.Errorf("%d attempts, expected 11", p.Attempts)
	}
	p.Sent(p.Next.Add(time.Minute), b, "pod")
	if p.Attempts != 1 {
		t.Errorf("%d attempts after a quiet minute, expected 1", p.Attempts)
	}
	p.Delay(p.Next.Add(time.Hour))
	if p.Ready(p.Next.Add(-time.Second)) {
		t.Error("ready before the server's Retry-After")
	}
}
