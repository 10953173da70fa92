// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"context"
	v1 "k8s.io/api/core/v1"
	"slices"
	"strings"
	"sync"
)

// sharedReads let pods share reads of common objects: their node, a pool of devices, a rule. A
// caller never gets the result of a read that began before the call: while a read is in flight, all
// further callers share the next read.
//
// For example, a node is read for the first caller. During this read, ten more callers request the
// node. They share a second read, which begins when the first read has ended. So there are two
// reads for eleven callers, and no result is too old.
type sharedReads[K comparable, V any] struct {
	get   func(ctx context.Context, key K) (V, error)
	mu    sync.Mutex
	reads map[K]*sharedRead[V] // the latest requested read, by key
}

// sharedRead is one read and its waiting callers.
type sharedRead[V any] struct {
	// closed and askers are guarded by mu. A closed read has begun, or was abandoned, and cannot be
	// joined.
	closed bool
	askers int // number of callers that have not left

	stop  context.CancelFunc // ends the read
	after *sharedRead[V]     // the preceding read, which must end first; nil if there is none
	done  chan struct{}      // closed when value and err are set
	value V                  // valid once done is closed
	err   error
}

// readShared returns the result of get for the key, from a read that begins after the call. The
// caller stops waiting when its ctx ends. The read continues for the other callers. It is bounded
// by answerWithin, and not by the context of any caller; it is canceled only if all callers have
// stopped waiting.
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

// joinRead returns the next read that has not begun yet, starting one if necessary. The read
// inherits the values of ctx, but not its cancellation.
func (r *sharedReads[K, V]) joinRead(ctx context.Context, key K) *sharedRead[V] {
	r.mu.Lock()
	defer r.mu.Unlock()
	read := r.reads[key]
	// A read in progress may return state from before this call.
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

// leaveRead ends the read if its last caller leaves.
func (r *sharedReads[K, V]) leaveRead(read *sharedRead[V]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if read.askers--; read.askers == 0 {
		read.closed = true
		read.stop()
	}
}

// carryOut waits for the end of the preceding read, and then reads.
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

// tolerations lets pods with equal tolerations, such as the pods of a workload, share one list in
// memory. When mostShared lists are remembered, all are forgotten: if lists differ that much, few
// are shared.
type tolerations struct {
	known map[string][]v1.Toleration
}

// mostShared bounds the number of remembered lists, and longestShared their length in bytes.
const mostShared, longestShared = 10_000, 4 << 10

// shareList returns an immutable list equal to the given one, or nil for an empty one. A new list
// is copied, because the given list may keep a whole page of pods in memory.
func (t *tolerations) shareList(list []v1.Toleration) []v1.Toleration {
	if len(list) == 0 {
		return nil
	}
	var key strings.Builder
	for i := range list {
		key.WriteString(list[i].String())
	}
	if key.Len() > longestShared {
		return slices.Clone(list)
	}
	if known, ok := t.known[key.String()]; ok {
		return known
	}
	if t.known == nil || len(t.known) >= mostShared {
		t.known = map[string][]v1.Toleration{}
	}
	t.known[key.String()] = slices.Clone(list)
	return t.known[key.String()]
}
