package supervisor

import (
	"fmt"
	"time"
)

const (
	// lookEvery is how often a part that starts is looked at.
	lookEvery = 15 * time.Second
	// quietFor is how long a part that starts may show no progress: a slow machine with a cold
	// cache needs minutes for a step or two, and logs or says something meanwhile.
	quietFor = 2 * time.Minute
	// startWithin is how long a part may take to become ready, whatever it shows: one that only
	// tries the same again also writes a log.
	startWithin = 15 * time.Minute
)

// signs are what a part that starts shows of its progress. Any difference between two looks is
// progress, also a log that became smaller by rotation.
type signs struct {
	lines int64  // on its standard output
	last  string // of them
	log   int64  // size of its log
}

// patience decides how long a part may take to become ready.
type patience struct {
	began, moved time.Time // moved is when the last progress was seen
	seen         signs
}

// newPatience begins when the part does.
func newPatience(now time.Time) *patience { return &patience{began: now, moved: now} }

// whyOver returns why the part is given up; empty: it is not. It is called every lookEvery. Silence
// is judged before the total time.
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

// describeProgress says how long the part has taken, and how far it has come.
func (p *patience) describeProgress(what string, now time.Time) string {
	text := fmt.Sprintf("%s after %s", what, now.Sub(p.began).Round(time.Second))
	if p.seen.last != "" {
		text += "; it said last: " + p.seen.last
	}
	return text
}
