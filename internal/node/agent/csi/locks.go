package csi

import (
	"context"
	"sync"
)

// locks are by name. The zero value has none held.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	slot  chan struct{} // has room for the holder
	users int           // the holder, and those that wait
}

// enter waits for a lock, and returns how to give it back. It fails if the context ends first.
func (l *locks) enter(ctx context.Context, name string) (leave func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	one := l.held[name]
	if one == nil {
		one = &lock{slot: make(chan struct{}, 1)}
		l.held[name] = one
	}
	one.users++
	l.mu.Unlock()
	forget := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.held, name)
		}
	}
	select {
	case one.slot <- struct{}{}:
		return func() { <-one.slot; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}
