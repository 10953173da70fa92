// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/response"
)

// logbook is this process's copy of the journal and its knowledge of the version in the API. A
// victim is evicted only after its move has been written, so a new process finds any move that may
// be in progress.
//
// Two processes must not carry out moves at the same time. There is no lock: a write carries the
// version that was read, and the API server rejects the second write.
type logbook struct {
	Journal
	version  string          // version of the journal in the API; "" if it does not exist
	recalled bool            // the journal was read, and no other process has written it since
	dirty    bool            // this copy differs from the journal in the API
	write    response.Ticket // ticket of the last write; responses to earlier writes are ignored
}

// load adopts the journal read from the API, which may be empty or missing. Resting is never nil
// afterwards.
func (l *logbook) load(e Recalled) {
	l.recalled, l.version = true, e.Version
	l.Journal = e.Journal
	if l.Resting == nil {
		l.Resting = map[string]Rest{}
	}
}

// copied returns a copy of the journal for a write. The copy is marshaled on another goroutine,
// while the original may change.
func (l *logbook) copied() Journal {
	journal := Journal{Resting: maps.Clone(l.Resting)}
	if l.Move != nil {
		journal.Move = new(*l.Move)
	}
	return journal
}

// saved records a successful write and the version it produced. A journal with a move is written
// again when the move ends.
func (l *logbook) saved(version string) { l.version, l.dirty = version, l.Move != nil }

// lost records that another process has written the journal and now owns it.
func (l *logbook) lost() { l.recalled, l.Move, l.dirty = false, nil, false }

// dropMove removes the move and marks the journal for writing.
func (l *logbook) dropMove() { l.Move, l.dirty = nil, true }

// rest stops moving pods of a workload for some time. Each miss doubles the time.
//
//	first miss    1 h
//	second        2 h
//	...
//	sixth         24 h, and no longer
//
// A successful move resets the count: after it the workload rests 30 minutes.
func (l *logbook) rest(workload string, missed bool, wall time.Time) Rest {
	before := l.Resting[workload]
	rest := Rest{Until: metav1.NewTime(wall.Add(restsFor))}
	if missed {
		rest.Misses = before.Misses + 1
		// The shift is bounded because a Duration would overflow.
		rest.Until = metav1.NewTime(wall.Add(min(restsFor<<min(rest.Misses, 10), longestRest)))
	}
	l.Resting[workload] = rest
	return rest
}

// forgetRests drops expired rests. The misses of a workload are remembered for another longestRest,
// so that the next miss adds to them. wall is the wall-clock time: rests outlive the process.
func (l *logbook) forgetRests(wall time.Time) {
	for workload, rest := range l.Resting {
		until := rest.Until.Time
		if rest.Misses > 0 {
			until = until.Add(longestRest)
		}
		if !until.After(wall) {
			delete(l.Resting, workload)
		}
	}

	// The journal is one API object of limited size; rests that end first are dropped first.
	for len(l.Resting) > mostResting {
		first := ""
		for workload, rest := range l.Resting {
			if first == "" || rest.Until.Time.Before(l.Resting[first].Until.Time) ||
				rest.Until.Equal(new(l.Resting[first].Until)) && workload < first {
				first = workload
			}
		}
		delete(l.Resting, first)
	}
}
