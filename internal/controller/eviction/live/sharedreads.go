package live

import (
	"context"
	"sync"
)

// sharedReads let pods share reads of what they have in common: their node, a pool of devices, a
// rule. No caller gets the result of a read that began before the call: while one is in flight,
// further callers share the next one.
//
// For example, a is read for the first caller. While that is under way, ten more ask for a: the
// first of them waits for the end of the read, and begins another one; the other nine get its
// result. So there are two reads for eleven callers, and no result is too old.
type sharedReads[K comparable, V any] struct {
	get   func(ctx context.Context, key K) (V, error)
	mu    sync.Mutex
	reads map[K]*sharedRead[V] // the last one asked for
}

// sharedRead is one read and those who wait for it.
type sharedRead[V any] struct {
	// Under mu. What is closed has begun, or has been given up, and nobody joins it any more.
	closed bool
	askers int // that wait for it, or have got its result

	stop  context.CancelFunc // ends the read
	after *sharedRead[V]     // the read before it, which is waited for; nil: none, or it is over
	done  chan struct{}      // closed when value and err are set
	value V                  // once done
	err   error
}

// readShared returns what get returns for the key, from a read that begins after the call. A caller
// whose ctx ends does not wait any longer. The read goes on for the others: it has answerWithin,
// whoever began it, and ends earlier only if nobody waits for it.
func (r *sharedReads[K, V]) readShared(ctx context.Context, key K) (V, error) {
	read := r.joinRead(ctx, key)
	select {
	case <-read.done:
		return read.value, read.err
	case <-ctx.Done():
		r.leaveRead(read)
		var none V
		return none, ctx.Err()
	}
}

// joinRead returns the read that has not begun yet, and starts one if there is none. Of ctx it has
// the values only.
func (r *sharedReads[K, V]) joinRead(ctx context.Context, key K) *sharedRead[V] {
	r.mu.Lock()
	defer r.mu.Unlock()
	read := r.reads[key]
	// What has begun may have read before this call.
	if read == nil || read.closed {
		read = &sharedRead[V]{after: read, done: make(chan struct{})}
		ctx, read.stop = context.WithCancel(context.WithoutCancel(ctx))
		if r.reads == nil {
			r.reads = map[K]*sharedRead[V]{}
		}
		r.reads[key] = read
		go r.carryOut(ctx, key, read)
	}
	read.askers++
	return read
}

// leaveRead ends the read if its last asker leaves.
func (r *sharedReads[K, V]) leaveRead(read *sharedRead[V]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if read.askers--; read.askers == 0 {
		read.closed = true
		read.stop()
	}
}

// carryOut waits for the read before it and then reads.
func (r *sharedReads[K, V]) carryOut(ctx context.Context, key K, read *sharedRead[V]) {
	defer read.stop()
	if read.after != nil {
		select {
		case <-read.after.done:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	read.closed, read.after = true, nil
	r.mu.Unlock()

	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	read.value, read.err = r.get(bounded, key)

	r.mu.Lock()
	if r.reads[key] == read {
		delete(r.reads, key)
	}
	r.mu.Unlock()
	close(read.done)
}
