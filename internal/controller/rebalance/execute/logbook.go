package execute

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// logbook is the journal as this process has it, and what it knows of the one in the API. No victim
// is evicted before its move is in the API: whoever starts anew finds there what may be under way.
//
// Two processes must not carry out moves at the same time. There is no lock: a write carries the
// version that was read, and the API server refuses the second one.
type logbook struct {
	Journal
	version  string // of the journal in the API; "": there is none
	recalled bool   // it has been read, and no other process has written it since
	dirty    bool   // the one in the API differs
	write    Ticket // of the last write; answers to others are late
}

// load takes over what was read. An empty journal, or none, is as good as any: Resting is never nil
// afterwards.
func (l *logbook) load(e Recalled) {
	l.recalled, l.version = true, e.Version
	l.Journal = e.Journal
	if l.Resting == nil {
		l.Resting = map[string]Rest{}
	}
}

// copied returns the journal for a write that goes on while this one changes. The caller of the
// write marshals it on another goroutine.
func (l *logbook) copied() Journal {
	journal := Journal{Resting: maps.Clone(l.Resting)}
	if l.Move != nil {
		flight := *l.Move
		journal.Move = &flight
	}
	return journal
}

// saved notes that the journal has been written. One with a move is written again at its end.
// version is that which the write has produced.
func (l *logbook) saved(version string) { l.version, l.dirty = version, l.Move != nil }

// lost notes that another process has written the journal: it is that one's now.
func (l *logbook) lost() { l.recalled, l.Move, l.dirty = false, nil, false }

// dropMove takes the move out. That it is over has to be written.
func (l *logbook) dropMove() { l.Move, l.dirty = nil, true }

// rest leaves a workload alone for some time. Each miss doubles the time.
//
//	first miss    1 h
//	second        2 h
//	...
//	sixth         24 h, and no longer
//
// A move that arrives resets that: the next one rests 30 minutes.
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

// forgetRests drops what is over. A workload that missed is remembered for longestRest after that,
// so that the next miss adds to it. wall is the wall-clock time: rests outlive the process.
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

	// The journal is one object of the API, whose size is limited: those that end first go first.
	for len(l.Resting) > mostResting {
		first := ""
		for workload, rest := range l.Resting {
			if first == "" || rest.Until.Time.Before(l.Resting[first].Until.Time) ||
				rest.Until.Equal(ptr(l.Resting[first].Until)) && workload < first {
				first = workload
			}
		}
		delete(l.Resting, first)
	}
}

// ptr makes a value addressable for Time.Equal.
func ptr(t metav1.Time) *metav1.Time { return &t }
