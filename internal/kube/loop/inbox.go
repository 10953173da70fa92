package loop

import "sync"

// message is for the owner of the core: an event, or a look at its state between two steps.
type message[E any] struct {
	event E
	look  func()
}

// inbox holds messages until the owner takes them, in their order. It never blocks those who write.
type inbox[E any] struct {
	mu       sync.Mutex
	messages []message[E]
	more     chan struct{} // has one element when there are messages
}

func (b *inbox[E]) put(m message[E]) {
	b.mu.Lock()
	b.messages = append(b.messages, m)
	b.mu.Unlock()
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// take returns all messages; spare is used for those that come meanwhile.
func (b *inbox[E]) take(spare []message[E]) []message[E] {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages := b.messages
	b.messages = spare[:0]
	return messages
}
