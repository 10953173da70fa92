// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"net"
	"sync"
)

// wire is a listener whose connections can be broken, refused, or blocked silently, as in a network
// partition.
type wire struct {
	net.Listener
	gate gate

	mu      sync.Mutex
	refuses bool
	conns   map[*wiredConn]bool
}

func newWire(l net.Listener) *wire { return &wire{Listener: l, conns: map[*wiredConn]bool{}} }

func (w *wire) Accept() (net.Conn, error) {
	for {
		conn, err := w.Listener.Accept()
		if err != nil {
			return nil, err
		}

		c := &wiredConn{Conn: conn, wire: w, over: make(chan struct{})}
		w.mu.Lock()
		refuses := w.refuses
		if !refuses {
			w.conns[c] = true
		}

		w.mu.Unlock()
		if !refuses {
			return c, nil
		}
		conn.Close()
	}
}

// blockAll silently blocks all traffic.
func (w *wire) blockAll() { w.gate.shut() }

// refuseAll breaks all connections and refuses new ones.
func (w *wire) refuseAll() {
	w.mu.Lock()
	w.refuses = true
	w.mu.Unlock()
	w.breakConnections()
}

// open ends the effects of blockAll and refuseAll.
func (w *wire) open() {
	w.mu.Lock()
	w.refuses = false
	w.mu.Unlock()
	w.gate.open()
}

func (w *wire) breakConnections() {
	w.mu.Lock()
	conns := make([]*wiredConn, 0, len(w.conns))
	for c := range w.conns {
		conns = append(conns, c)
	}
	w.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

type wiredConn struct {
	net.Conn
	wire *wire
	once sync.Once
	over chan struct{}
}

var errOver = errors.New("the connection was closed")

func (c *wiredConn) Read(into []byte) (int, error) {
	if !c.wire.gate.waitOpen(c.over) {
		return 0, errOver
	}
	n, err := c.Conn.Read(into)
	if !c.wire.gate.waitOpen(c.over) {
		return 0, errOver
	}
	return n, err
}

func (c *wiredConn) Write(from []byte) (int, error) {
	if !c.wire.gate.waitOpen(c.over) {
		return 0, errOver
	}
	return c.Conn.Write(from)
}

func (c *wiredConn) Close() error {
	c.once.Do(func() { close(c.over) })
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
