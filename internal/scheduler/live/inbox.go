package live

import (
	"sync"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// message is for the owner of the core: an event, or a look at its state between two steps.
type message struct {
	event cycle.Event
	look  func()
}

// inbox holds messages until the owner takes them. It never blocks those who write.
type inbox struct {
	mu       sync.Mutex
	messages []message
	more     chan struct{} // has one element when there are messages
}

func newInbox() *inbox { return &inbox{more: make(chan struct{}, 1)} }

func (b *inbox) put(m message) {
	b.mu.Lock()
	b.messages = append(b.messages, m)
	b.mu.Unlock()
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// see leaves an event.
func (b *inbox) see(e cycle.Event) { b.put(message{event: e}) }

// take returns all messages in their order; spare is used for those that come meanwhile.
func (b *inbox) take(spare []message) []message {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages := b.messages
	b.messages = spare[:0]
	return messages
}
