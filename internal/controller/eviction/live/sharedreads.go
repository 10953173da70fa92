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
	begun bool           // under mu
	after *sharedRead[V] // the read before it, which is waited for; nil: none, or it is over
	done  chan struct{}  // closed when value and err are set
	value V              // once done
	err   error
}

// readShared returns what get returns for the key, from a read that begins after the call. A caller
// whose ctx ends does not wait for the read of another; a read is bounded by the ctx of the caller
// that began it.
func (r *sharedReads[K, V]) readShared(ctx context.Context, key K) (V, error) {
	r.mu.Lock()
	last := r.reads[key]
	// What has begun may have read before this call.
	if last == nil || last.begun {
		read := &sharedRead[V]{after: last, done: make(chan struct{})}
		if r.reads == nil {
			r.reads = map[K]*sharedRead[V]{}
		}
		r.reads[key] = read
		r.mu.Unlock()
		r.carryOut(ctx, key, read)
		return read.value, read.err
	}

	r.mu.Unlock()
	select {
	case <-last.done:
		return last.value, last.err
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}

// carryOut waits for the read before it and then reads.
func (r *sharedReads[K, V]) carryOut(ctx context.Context, key K, read *sharedRead[V]) {
	if read.after != nil {
		select {
		case <-read.after.done:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	read.begun, read.after = true, nil
	r.mu.Unlock()

	read.value, read.err = r.get(ctx, key)

	r.mu.Lock()
	if r.reads[key] == read {
		delete(r.reads, key)
	}
	r.mu.Unlock()
	close(read.done)
}
