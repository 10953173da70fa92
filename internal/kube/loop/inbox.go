// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import "sync"

// message is for the owner of the core: an event, or a look at its state between two steps.
type message[E any] struct {
	event E
	look  func()
	size  int // size of the observed object
}

// mostBytes bounds the size of the waiting objects. It may be exceeded by one object per watch,
// each up to the API server's size limit.
const mostBytes = 256 << 20

// inbox holds messages in order until the owner takes them. It blocks only watches.
type inbox[E any] struct {
	mu       sync.Mutex
	messages []message[E]
	more     chan struct{} // has an element while there are messages
	bytes    int           // size of objects not yet taken by the owner
	room     chan struct{} // closed once there is room; nil without a waiter
}

// waitForRoom waits until there is room for an object, or the end. Several watches may find the
// same room: each adds its object then.
func (b *inbox[E]) waitForRoom(end <-chan struct{}) {
	for {
		b.mu.Lock()
		if b.bytes < mostBytes {
			b.mu.Unlock()
			return
		}
		if b.room == nil {
			b.room = make(chan struct{})
		}
		room := b.room
		b.mu.Unlock()
		select {
		case <-room:
		case <-end:
			return
		}
	}
}

// release makes room: the owner has taken in an object of that size.
func (b *inbox[E]) release(size int) {
	if size == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= size
	if b.room != nil && b.bytes < mostBytes {
		close(b.room)
		b.room = nil
	}
}

// put adds a message and wakes the owner. It never blocks.
func (b *inbox[E]) put(m message[E]) {
	b.mu.Lock()
	b.messages = append(b.messages, m)
	b.bytes += m.size
	b.mu.Unlock()
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// take returns all messages; spare receives those added meanwhile, so that two arrays suffice
// forever. The caller must clear the returned messages.
func (b *inbox[E]) take(spare []message[E]) []message[E] {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages := b.messages
	b.messages = spare[:0]
	return messages
}
