// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"time"
)

const (
	// lookEvery is the interval between checks of a starting part.
	lookEvery = 15 * time.Second
	// quietFor limits the time a starting part may show no progress: a slow machine with a cold
	// cache needs minutes for a step or two, and produces output meanwhile.
	quietFor = 2 * time.Minute
	// startWithin limits the time until a part is ready, regardless of progress, since endless
	// retries also write a log.
	startWithin = 15 * time.Minute
)

// signs holds a starting part's signs of progress. Any difference between two checks is progress,
// including a log shrunk by rotation.
type signs struct {
	lines int64  // number of lines on standard output
	last  string // last line
	log   int64  // size of its log
}

// patience decides when to give up on a starting part.
type patience struct {
	began, moved time.Time // moved is the time of the last progress
	seen         signs
}

// newPatience starts the clock together with the part.
func newPatience(now time.Time) *patience { return &patience{began: now, moved: now} }

// whyOver returns the reason to give up on the part, or "". It is called every lookEvery. It checks
// silence before the total time.
func (p *patience) whyOver(now time.Time, seen signs) string {
	if seen != p.seen {
		p.seen, p.moved = seen, now
	}
	switch {
	case now.Sub(p.moved) >= quietFor:
		return fmt.Sprintf("no progress in the last %s, %s", quietFor, p.describeProgress("not ready", now))
	case now.Sub(p.began) >= startWithin:
		return p.describeProgress("not ready", now)
	}
	return ""
}

// describeProgress describes the elapsed time and the progress of the part.
func (p *patience) describeProgress(what string, now time.Time) string {
	text := fmt.Sprintf("%s after %s", what, now.Sub(p.began).Round(time.Second))
	if p.seen.last != "" {
		text += "; its last message: " + p.seen.last
	}
	return text
}
