// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"io"
	"log"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// quiet discards net/http's messages about connections broken on purpose.
var quiet = log.New(io.Discard, "", 0)

// gate passes callers, or blocks them until it is opened.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // nil if the gate is open; otherwise closed when the gate opens
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// waitOpen waits until the gate is open. It returns false if over is closed first.
func (g *gate) waitOpen(over <-chan struct{}) bool {
	for {
		g.mu.Lock()
		closed := g.closed
		g.mu.Unlock()
		if closed == nil {
			return true
		}
		select {
		case <-closed:
		case <-over:
			return false
		}
	}
}

type watchKey struct{}

// serveWatch forwards a watch until it is cut.
func (n *network) serveWatch(w http.ResponseWriter, r *http.Request, resource string) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	one := &watching{resource: resource, cancel: cancel}
	n.mu.Lock()
	n.number++
	id := n.number
	n.watches[id] = one
	if n.stalled {
		one.gate.shut()
	}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.watches, id)
		n.mu.Unlock()
	}()

	n.forward.ServeHTTP(w, r.WithContext(context.WithValue(ctx, watchKey{}, one)))
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

// gateWatch passes a watch's events through its gate.
func (n *network) gateWatch(answer *http.Response) error {
	if one, ok := answer.Request.Context().Value(watchKey{}).(*watching); ok {
		answer.Body = &gatedBody{answer.Body, one, answer.Request.Context().Done()}
	}
	return nil
}

type gatedBody struct {
	io.ReadCloser
	watch *watching
	over  <-chan struct{}
}

func (b *gatedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if !b.watch.gate.waitOpen(b.over) {
		return 0, context.Canceled
	}
	return n, err
}

// watchesOf returns the watches of a resource; "" selects all.
func (n *network) watchesOf(resource string) []*watching {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(n.watches)), func(w *watching) bool {
		return resource != "" && w.resource != resource
	})
}

// cutWatches breaks watches; with relist, the next watch of each resource fails because its version
// is too old.
func (n *network) cutWatches(resource string, relist bool) {
	for _, w := range n.watchesOf(resource) {
		if relist {
			n.mu.Lock()
			n.forget[w.resource] = true
			n.mu.Unlock()
		}
		w.cancel()
	}
}

// stallWatches withholds the events of watches for a time, and then releases them together.
func (n *network) stallWatches(ctx context.Context, resource string, d time.Duration) {
	watches := n.watchesOf(resource)
	for _, w := range watches {
		w.gate.shut()
	}
	sleepFor(ctx, d)
	for _, w := range watches {
		w.gate.open()
	}
}

// setStalled withholds the events of all watches, including new ones, or releases them.
func (n *network) setStalled(stalled bool) {
	n.mu.Lock()
	n.stalled = stalled
	n.mu.Unlock()
	for _, w := range n.watchesOf("") {
		if stalled {
			w.gate.shut()
		} else {
			w.gate.open()
		}
	}
}
