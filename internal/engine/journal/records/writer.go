package records

import (
	"context"
	"sync"
	"time"
)

const (
	// flushEvery bounds what a kill loses.
	flushEvery = 500 * time.Millisecond
	// mostWaiting bounds the records that are queued. A goroutine that adds another one waits.
	mostWaiting = 1 << 14
)

// Writer writes records of type R on its own goroutine. Add belongs to one goroutine, which may be
// stuck when Close is called, and go on later.
type Writer[R any] struct {
	waiting chan R
	closing chan struct{} // closed by Close; waiting never is
	done    chan struct{}
	mu      sync.Mutex
	err     error // why it ended before Close
}

// Into is what a Writer writes to. Its methods are called on the writer's goroutine. The first
// error ends the journal.
type Into[R any] interface {
	Take(r R) error
	Flush() error
	Close() error
}

// Start starts the goroutine that writes.
func Start[R any](into Into[R]) *Writer[R] {
	w := &Writer[R]{waiting: make(chan R, mostWaiting), closing: make(chan struct{}), done: make(chan struct{})}
	go w.run(into)
	return w
}

// Add queues a record. After the journal has ended it does nothing.
func (w *Writer[R]) Add(r R) {
	select {
	case w.waiting <- r:
	case <-w.done:
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
	case <-ctx.Done():
	}
	return w.Err()
}

// run writes until Close or the first error.
func (w *Writer[R]) run(into Into[R]) {
	defer close(w.done)
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	err := w.write(into, flush.C)
	if closed := into.Close(); err == nil {
		err = closed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *Writer[R]) write(into Into[R], flush <-chan time.Time) error {
	for {
		select {
		case <-flush:
			if err := into.Flush(); err != nil {
				return err
			}
		case r := <-w.waiting:
			if err := into.Take(r); err != nil {
				return err
			}
		case <-w.closing:
			return w.rest(into)
		}
	}
}

// rest writes what is queued.
func (w *Writer[R]) rest(into Into[R]) error {
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
