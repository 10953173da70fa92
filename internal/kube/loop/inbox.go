// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"sync"

	"github.com/berth-k8s/berth/internal/pacing"
)

// message is an event for the core, or a function that the owner calls between two steps.
type message[E any] struct {
	event E
	look  func()
	size  int // size of the object in the event; 0 if it is not counted
}

// mostBytes bounds the total size of the queued objects. Each watch may exceed it by one object.
const mostBytes = 256 << 20

// inbox holds messages in order until the owner takes them. Only waitForRoom, which watches call,
// blocks.
type inbox[E any] struct {
	mu       sync.Mutex
	messages []message[E]
	more     chan struct{} // has an element while there are messages
	bytes    int           // size of the objects that the core has not processed yet
	room     chan struct{} // closed as soon as bytes is below mostBytes; nil if no watch is waiting
}

// waitForRoom waits until bytes is below mostBytes, or end is closed. If several watches wait, all
// of them continue, and each adds one object.
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

// release subtracts the size of an object that the core has processed, and wakes waiting watches.
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
	pacing.Signal(b.more)
}

// take returns all messages, and reuses the array of spare for later messages. The caller must
// clear the returned messages.
func (b *inbox[E]) take(spare []message[E]) []message[E] {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages := b.messages
	b.messages = spare[:0]
	return messages
}
