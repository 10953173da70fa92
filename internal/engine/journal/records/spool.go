// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"
	"sync"
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
)

const (
	// flushEvery is the interval between flushes. If the process is killed, at most the records of
	// this time are lost.
	flushEvery = 500 * time.Millisecond
	// mostBytes bounds the bytes waiting for the disk, not counting the state at the beginning of a
	// file.
	mostBytes = 64 << 20
	// PieceCost is the memory overhead of a queued record, in bytes.
	PieceCost = 64
)

// ErrBehind ends a journal of a single file if the disk does not keep up.
var ErrBehind = fmt.Errorf("the disk does not keep up: %d MiB are waiting to be written, and the journal ends", mostBytes>>20)

// Spool writes records into a series of files on a separate goroutine. Adding a record never waits
// for the disk. A record that exceeds the limit of queued bytes is lost, and so are all later
// records until the next file begins, since a file with a gap could not be replayed. When the disk
// stalls, the spool first queues mostBytes. Then records are lost, the file ends early, and Due
// requests the next one as soon as everything before the gap is written.
type Spool struct {
	single bool        // only one file: a gap ends the journal
	notify func(error) // called when records are lost; not nil
	wake   chan struct{}
	ended  chan struct{}

	mu      sync.Mutex
	pieces  []piece // not yet taken by the goroutine
	size    int     // total size of the pieces that are queued or being written
	extra   int     // size of the state at the beginning of the file, allowed in addition to mostBytes
	lost    int     // number of records lost since the file ended early
	onLost  func()  // called for each lost record; may be nil
	full    bool    // the file is large or old enough
	turning bool    // the next file has been requested, but is not open yet
	closing bool
	err     error // the reason for the end
}

// piece is a record, or, if open is set, the next file.
type piece struct {
	at     time.Time
	record []byte
	open   func() (*File, error)
}

// size returns the piece's share of mostBytes.
func (p piece) size() int {
	if p.open != nil {
		return 0 // not counted, so that the first record of the file is accepted whatever its length
	}
	return len(p.record) + PieceCost
}

// NewSpool starts the writing goroutine, which begins with f. notify is called on other goroutines.
// If single is set, the journal consists of this file only.
func NewSpool(f *File, single bool, notify func(error)) *Spool {
	if notify == nil {
		notify = func(error) {}
	}
	s := &Spool{single: single, notify: notify, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go s.run(f)
	return s
}

// Add queues a record and retains it. The error is the reason why the journal has ended.
func (s *Spool) Add(at time.Time, record []byte) error {
	s.mu.Lock()
	first := false
	p := piece{at: at, record: record}
	switch {
	// The journal has ended, and the record is lost.
	case s.err != nil:
	// An empty queue takes a record of any length. Otherwise, a record above the limit could never
	// be written.
	case s.lost == 0 && (s.size == 0 || s.size+p.size() <= mostBytes+s.extra):
		s.put(p)
	// No other file can follow, so the journal ends.
	case s.single:
		s.err = ErrBehind
	default:
		first = s.lost == 0
		s.lost++
	}
	err, onLost := s.err, s.onLost
	// The record was queued and need not be counted.
	if s.lost == 0 && err == nil {
		onLost = nil
	}
	s.mu.Unlock()

	if onLost != nil {
		onLost()
	}
	if first {
		s.notify(fmt.Errorf("the disk does not keep up: %d MiB are waiting to be written, and further records are lost until then",
			mostBytes>>20))
	}
	return err
}

// OnLost makes count be called on other goroutines for each record lost from now on.
func (s *Spool) OnLost(count func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onLost = count
}

// put queues a piece. The caller holds the mutex. wake has room for one signal, which is enough:
// the goroutine takes all pieces together.
func (s *Spool) put(p piece) {
	s.pieces = append(s.pieces, p)
	s.size += p.size()
	pacing.Signal(s.wake)
}

// Due reports whether the next file should begin: the current file is large or old enough, or it
// ended early and all of its records are written.
func (s *Spool) Due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isDue()
}

// isDue is Due for a caller holding the mutex.
func (s *Spool) isDue() bool {
	return !s.single && !s.turning && s.err == nil && (s.full || s.lost > 0 && s.size == 0)
}

// TakeDue is like Due, but returns true only once for each file. It is for callers that turn
// immediately, without a state to prepare.
func (s *Spool) TakeDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.isDue()
	s.turning = s.turning || due
	return due
}

// Await makes Due return false until the next file is open. The caller must call Turn for that
// file.
func (s *Spool) Await() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turning = true
}

// Turn directs records added from now on to another file, which begins with a state of the given
// size. open gets the number of records lost before that file.
func (s *Spool) Turn(state int, open func(lost int) (*File, error)) {
	s.mu.Lock()
	lost := s.lost
	s.lost, s.extra, s.turning = 0, state, true
	s.put(piece{open: func() (*File, error) { return open(lost) }})
	s.mu.Unlock()

	if lost > 0 {
		s.notify(fmt.Errorf("the disk has caught up, and the journal continues in another file; records lost: %d", lost))
	}
}

// Ended returns a channel that is closed when writing has ended.
func (s *Spool) Ended() <-chan struct{} { return s.ended }

// Close writes the queue, and ends the file. It waits for the disk. It must be called only once.
func (s *Spool) Close() error {
	s.mu.Lock()
	s.closing = true
	lost := s.lost
	s.mu.Unlock()
	pacing.Signal(s.wake)
	<-s.ended

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && lost > 0 {
		return fmt.Errorf("the disk did not keep up; records lost: %d", lost)
	}
	return s.err
}

// run writes until Close or the first error.
func (s *Spool) run(f *File) {
	defer close(s.ended)
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	err := s.writeAll(&f, flush.C)
	if f != nil {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.pieces = nil
}

// writeAll writes the queue, and flushes from time to time, even while it is busy.
func (s *Spool) writeAll(f **File, flush <-chan time.Time) error {
	for {
		pieces, closing := s.take()
		for i := range pieces {
			if err := s.write(f, &pieces[i]); err != nil {
				return err
			}
			select {
			case <-flush:
				if err := (*f).Flush(); err != nil {
					return err
				}
			default:
			}
		}
		// More may have been queued meanwhile; wait only if the queue was empty.
		if len(pieces) > 0 {
			continue
		}

		if closing {
			return nil
		}
		select {
		case <-s.wake:
		case <-flush:
			if err := (*f).Flush(); err != nil {
				return err
			}
		}
	}
}

// take takes the whole queue. closing reports whether no more pieces will follow. The mutex is not
// held while the pieces are written.
func (s *Spool) take() (pieces []piece, closing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pieces, s.pieces = s.pieces, nil
	return pieces, s.closing || s.err != nil
}

// write writes a piece, and releases it.
func (s *Spool) write(f **File, p *piece) error {
	opens := p.open != nil
	if opens {
		next, err := s.turn(*f, p.open)
		if *f = next; err != nil {
			return err
		}
	} else if err := (*f).Write(p.record); err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.size -= p.size()
	if opens {
		s.full, s.turning = false, false
	} else {
		// Use the time of the record rather than the clock, so that full depends only on the
		// contents.
		s.full = (*f).Due(p.at)
	}
	*p = piece{}
	return nil
}

// turn closes a file and opens the next one. A failed Close ends the journal: if the end of a file
// may be missing, no other file may follow.
func (*Spool) turn(f *File, open func() (*File, error)) (*File, error) {
	if err := f.Close(); err != nil {
		return nil, err
	}
	return open()
}
