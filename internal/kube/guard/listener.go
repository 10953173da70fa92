// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// Bounds limits the connections of a listener. New connections are always accepted; in excess of a
// bound, an older connection is closed.
type Bounds struct {
	Unadmitted int // maximum number of unadmitted connections
	PerSource  int // maximum number of unadmitted connections per source
	Admitted   int // maximum number of admitted connections
}

// Ports is for ports with few callers and few requests.
var Ports = Bounds{Unadmitted: 256, PerSource: 64, Admitted: 128}

// Listener is a listener with Bounds. Bound returns one.
type Listener struct {
	net.Listener
	bounds Bounds

	mu         sync.Mutex
	unadmitted map[string]*list.List // lists of *conn by source, oldest first; empty lists are removed
	waiting    int                   // total number of unadmitted connections
	admitted   int                   // number of open admitted connections
}

// Bound returns a Listener that applies the bounds to l.
func Bound(l net.Listener, bounds Bounds) *Listener {
	return &Listener{Listener: l, bounds: bounds, unadmitted: map[string]*list.List{}}
}

// conn is a connection of a Listener. While it is open, it counts as unadmitted if place is set,
// and as admitted if admitted is set.
type conn struct {
	net.Conn
	listener *Listener
	source   string
	place    *list.Element // element in unadmitted[source]; nil once admitted
	admitted bool
	closed   bool
}

// Accept accepts a connection, and closes an older one if a bound is exceeded. The caller of the
// new connection is more likely to be admitted than the caller of a connection that has been
// unadmitted for long.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l, source: Source(accepted.RemoteAddr().String())}
	if victim := l.enter(c); victim != nil {
		_ = victim.Close()
	}
	return c, nil
}

// enter adds an unadmitted connection. It returns the connection to close if a bound is now
// exceeded, and otherwise nil.
func (l *Listener) enter(c *conn) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.unadmitted[c.source]
	if own == nil {
		own = list.New()
		l.unadmitted[c.source] = own
	}
	c.place = own.PushBack(c)
	l.waiting++
	switch {
	case own.Len() > l.bounds.PerSource:
		return own.Front().Value.(*conn)
	case l.waiting > l.bounds.Unadmitted:
		return l.largest().Front().Value.(*conn)
	}
	return nil
}

// largest returns the unadmitted connections of the source with the most. It scans all sources;
// there are at most Unadmitted.
func (l *Listener) largest() (largest *list.List) {
	for _, each := range l.unadmitted {
		if largest == nil || each.Len() > largest.Len() {
			largest = each
		}
	}
	return largest
}

// leave removes a connection from unadmitted, if it is there. The lock is held.
func (l *Listener) leave(c *conn) {
	if c.place == nil {
		return
	}
	own := l.unadmitted[c.source]
	own.Remove(c.place)
	c.place = nil
	l.waiting--
	if own.Len() == 0 {
		delete(l.unadmitted, c.source)
	}
}

// Close closes the connection and removes it from the counts. It may be called more than once, for
// example by the server and by Accept.
func (c *conn) Close() error {
	l := c.listener
	l.mu.Lock()
	l.leave(c)
	if c.admitted && !c.closed {
		l.admitted--
	}
	c.closed = true
	l.mu.Unlock()
	return c.Conn.Close()
}

// admit makes the connection an admitted one, and returns false if there are too many of them. A
// connection stays admitted for all of its requests.
func (c *conn) admit() bool {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.admitted || c.closed {
		return true
	}
	if l.admitted >= l.bounds.Admitted {
		return false
	}
	l.leave(c)
	c.admitted = true
	l.admitted++
	return true
}

// bounded is the context key of a request's connection.
type bounded struct{}

// ConnContext is for the field ConnContext of http.Server. It adds the connection to the contexts
// of requests for Admit, also under TLS.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	for {
		switch under := c.(type) {
		case *conn:
			return context.WithValue(ctx, bounded{}, under)
		case interface{ NetConn() net.Conn }: // *tls.Conn
			c = under.NetConn()
		default:
			return ctx
		}
	}
}

// Admit records that the caller of a request was authorized, so that the connection is admitted. It
// returns false if there are too many admitted connections. It always returns true for a request
// from another kind of listener.
func Admit(r *http.Request) bool {
	c, ok := r.Context().Value(bounded{}).(*conn)
	return !ok || c.admit()
}

// Refuse responds with an error and makes the server close the connection, which a refused caller
// does not need any more.
func Refuse(w http.ResponseWriter, code int, why string) {
	w.Header().Set("Connection", "close")
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, why, code)
}
