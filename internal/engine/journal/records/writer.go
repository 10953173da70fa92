package records

import (
	"context"
	"fmt"
	"sync"
)

// mostWaiting bounds the records that are not encoded yet, each of which may be an object as large
// as the API server takes. A goroutine that adds another one waits for the encoder, which waits for
// nothing: what is slow is behind the [Spool].
const mostWaiting = 64

// Writer encodes records of type R on its own goroutine. Add belongs to one goroutine, which may be
// stuck when Close is called, and go on later.
type Writer[R any] struct {
	waiting chan R        // holds mostWaiting records
	closing chan struct{} // closed by Close; waiting never is
	done    chan struct{}
	tell    func(error)

	mu     sync.Mutex
	err    error  // why it ended before Close
	onLost func() // is called for each record that comes after the end; nil: nobody counts them
}

// Into is what a Writer writes to: it encodes records for a [Spool]. Its methods are called on the
// writer's goroutine, and wait for no disk, but for Close. The first error ends the journal.
type Into[R any] interface {
	Take(r R) error
	Ended() <-chan struct{} // closed when nothing is written any more
	Close() error
}

// Start starts the goroutine that encodes. tell, if set, is told why the journal has ended before
// Close. The goroutine ends with Close, or with the first error.
func Start[R any](into Into[R], tell func(error)) *Writer[R] {
	w := &Writer[R]{waiting: make(chan R, mostWaiting), closing: make(chan struct{}), done: make(chan struct{}), tell: tell}
	go w.run(into)
	return w
}

// Add queues a record. After the journal has ended it does nothing. It waits while mostWaiting
// records are not encoded, but never for the disk.
func (w *Writer[R]) Add(r R) {
	select {
	case <-w.done: // there may be room as well
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

// OnLost has each record counted that comes after the journal has ended.
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

// Done is closed when the journal has ended.
func (w *Writer[R]) Done() <-chan struct{} { return w.done }

// Err returns why the journal has ended, or nil.
func (w *Writer[R]) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close writes what is queued. What is added afterwards may be lost.
func (w *Writer[R]) Close(ctx context.Context) error {
	close(w.closing)
	select {
	case <-w.done:
		return w.Err()
	case <-ctx.Done():
		return fmt.Errorf("what waits for the disk is not written: %w", context.Cause(ctx))
	}
}

// run encodes until Close or the first error.
func (w *Writer[R]) run(into Into[R]) {
	defer close(w.done)
	err := w.encode(into)
	if closed := into.Close(); err == nil {
		err = closed
	}
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()

	select {
	case <-w.closing: // Close returns it
	default:
		if err != nil && w.tell != nil {
			w.tell(err)
		}
	}
}

// encode takes records until the journal ends, and returns why it has; nil after Close, or if the
// spool has ended.
func (w *Writer[R]) encode(into Into[R]) error {
	for {
		select {
		case r := <-w.waiting:
			if err := into.Take(r); err != nil {
				return err
			}
		case <-into.Ended():
			return nil // Close says why
		// What was queued before Close is still written.
		case <-w.closing:
			return w.encodeRest(into)
		}
	}
}

// encodeRest encodes what is queued.
func (w *Writer[R]) encodeRest(into Into[R]) error {
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
