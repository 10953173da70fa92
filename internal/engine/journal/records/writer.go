// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"fmt"
	"sync"
)

// mostWaiting bounds the records that are not encoded yet, each possibly an object of the API
// server's maximum size. A goroutine that adds another record waits for the encoder, which never
// waits for the disk: the [Spool] writes on another goroutine.
const mostWaiting = 64

// Writer encodes records of type R on a separate goroutine. Add belongs to one goroutine, which may
// be waiting in Add when another goroutine calls Close.
type Writer[R any] struct {
	waiting chan R        // holds mostWaiting records
	closing chan struct{} // closed by Close; waiting is never closed, since Add may still send to it
	done    chan struct{}
	notify  func(error)

	mu     sync.Mutex
	err    error  // the reason for ending before Close
	onLost func() // called for each record added after the end; may be nil
}

// Destination is the destination of a Writer: it encodes records for a [Spool]. Its methods are
// called on the writer's goroutine. Except for Close, they do not wait for the disk. The first
// error ends the journal.
type Destination[R any] interface {
	Take(r R) error
	Ended() <-chan struct{} // closed when writing has ended
	Close() error
}

// Start starts the encoding goroutine. notify, if set, is called with the reason if the journal
// ends before Close. The goroutine ends with Close, or with the first error.
func Start[R any](into Destination[R], notify func(error)) *Writer[R] {
	w := &Writer[R]{waiting: make(chan R, mostWaiting), closing: make(chan struct{}), done: make(chan struct{}), notify: notify}
	go w.run(into)
	return w
}

// Add queues a record. After the journal has ended it does nothing. It waits while mostWaiting
// records are not encoded, but never for the disk.
func (w *Writer[R]) Add(r R) {
	select {
	case <-w.done: // checked first, since the second select may receive from waiting even after the end
		w.countLost()
		return
	default:
	}
	select {
	case w.waiting <- r:
	case <-w.done:
		w.countLost()
	}
}

// OnLost makes count be called for each record added after the journal has ended.
func (w *Writer[R]) OnLost(count func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onLost = count
}

// countLost calls onLost outside of the mutex.
func (w *Writer[R]) countLost() {
	w.mu.Lock()
	count := w.onLost
	w.mu.Unlock()
	if count != nil {
		count()
	}
}

// Done returns a channel that is closed when the journal has ended.
func (w *Writer[R]) Done() <-chan struct{} { return w.done }

// Err returns the reason why the journal has ended, or nil.
func (w *Writer[R]) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close writes the queued records. Records added afterwards may be lost.
func (w *Writer[R]) Close(ctx context.Context) error {
	close(w.closing)
	select {
	case <-w.done:
		return w.Err()
	case <-ctx.Done():
		return fmt.Errorf("waiting records are not written: %w", context.Cause(ctx))
	}
}

// run encodes until Close or the first error.
func (w *Writer[R]) run(into Destination[R]) {
	defer close(w.done)
	err := w.encode(into)
	if closed := into.Close(); err == nil {
		err = closed
	}
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()

	select {
	case <-w.closing: // Close returns the error
	default:
		if err != nil && w.notify != nil {
			w.notify(err)
		}
	}
}

// encode takes records until the journal ends, and returns the reason; nil after Close, or if the
// spool has ended.
func (w *Writer[R]) encode(into Destination[R]) error {
	for {
		select {
		case r := <-w.waiting:
			if err := into.Take(r); err != nil {
				return err
			}
		case <-into.Ended():
			return nil // Close returns the reason
		case <-w.closing:
			// Records queued before Close are still written.
			for {
				select {
				case r := <-w.waiting:
					if err := into.Take(r); err != nil {
						return err
					}
				default:
					return nil
				}
			}
		}
	}
}
