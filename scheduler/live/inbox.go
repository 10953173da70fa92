package live

import "sync"

// inbox holds what happened until the owner of the state looks. It never blocks those who write.
type inbox struct {
	mu       sync.Mutex
	messages []func()
	more     chan struct{} // has one element when there are messages
}

func newInbox() *inbox { return &inbox{more: make(chan struct{}, 1)} }

// put leaves a message: what the owner is to do.
func (b *inbox) put(message func()) {
	b.mu.Lock()
	b.messages = append(b.messages, message)
	b.mu.Unlock()
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// take returns all messages in their order; spare is used for those that come meanwhile.
func (b *inbox) take(spare []func()) []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages := b.messages
	b.messages = spare[:0]
	return messages
}
