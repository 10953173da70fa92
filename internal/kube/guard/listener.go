// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Bounds are the maximum numbers of connections held by a listener. It accepts more, at the cost of
// older ones.
type Bounds struct {
	Unadmitted int // limit of connections with callers not admitted yet
	PerSource  int // the same limit per source
	Admitted   int // limit of connections with admitted callers
	// Unknown is the number of bytes an unadmitted caller may send before being let in, TLS
	// included; 0 means unlimited. See NoteCertificate.
	Unknown int64
}

// Ports are the bounds of ports with few callers and few requests.
var Ports = Bounds{Unadmitted: 256, PerSource: 64, Admitted: 128}

// Listener is a bounded listener; see Bounds. Bound makes one.
type Listener struct {
	net.Listener
	bounds Bounds

	mu         sync.Mutex
	unadmitted map[string]*list.List // lists of *conn by source, oldest first; empty lists are removed
	waiting    int                   // sum of their lengths
	admitted   int                   // number of open connections with admitted callers
}

// Bound returns the listener with bounds.
func Bound(l net.Listener, bounds Bounds) *Listener {
	return &Listener{Listener: l, bounds: bounds, unadmitted: map[string]*list.List{}}
}

// conn is a counted connection: unadmitted as long as place is set, among the admitted while
// admitted is set.
type conn struct {
	net.Conn
	listener *Listener
	source   string
	place    *list.Element // element in unadmitted[source]; nil once admitted
	admitted bool
	closed   bool
	unread   atomic.Int64 // remaining bytes that an unadmitted caller may send
	vouched  atomic.Bool  // its caller may send any number of bytes
}

// Accept closes connections in excess of the bounds, but never the newly accepted one: a newcomer
// is more likely to be served than an old connection still not let in.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l, source: Source(accepted.RemoteAddr().String())}
	c.unread.Store(l.bounds.Unknown)
	c.vouched.Store(l.bounds.Unknown == 0)
	if victim := l.enter(c); victim != nil {
		_ = victim.Close()
	}
	return c, nil
}

// enter adds an unadmitted connection, and returns the connection to close for it, if any.
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

// largest returns the unadmitted connections of the source with the most. It scans all sources, at
// most Unadmitted in number.
func (l *Listener) largest() (largest *list.List) {
	for _, each := range l.unadmitted {
		if largest == nil || each.Len() > largest.Len() {
			largest = each
		}
	}
	return largest
}

// leave removes a connection from the unadmitted, if it is one. The lock is held.
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

// Close closes the connection and gives up its place. It may be called more than once, by the
// server, the caller, or Accept.
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

// errUnknown ends the connection of an unadmitted caller that sends too much.
var errUnknown = errors.New("more than a caller who is not known may send")

// Read bounds the bytes sent by an unadmitted caller, and thereby the memory of a TLS handshake and
// of headers before authentication.
func (c *conn) Read(b []byte) (int, error) {
	if c.vouched.Load() {
		return c.Conn.Read(b)
	}
	left := c.unread.Load()
	if left <= 0 {
		return 0, errUnknown
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
	c.unread.Add(-int64(n))
	return n, err
}

// admit moves an unadmitted connection to the admitted, if they have room. An admitted
// connection stays so for all its requests.
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
	c.vouched.Store(true)
	l.admitted++
	return true
}

// NoteCertificate records that the caller of a connection has presented an accepted certificate,
// but is not yet let in. It may send more than an unadmitted caller.
func NoteCertificate(c net.Conn) {
	if known, ok := c.(*conn); ok {
		known.vouched.Store(true)
	}
}

// bounded is the context key of a request's connection.
type bounded struct{}

// ConnContext is for http.Server's field of this name. It lets Admit find a request's connection,
// also under TLS.
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

// Admit records that the caller of a request was let in, and is no longer unadmitted. It returns
// false if too many are admitted already. A request from another listener is always admitted.
func Admit(r *http.Request) bool {
	c, ok := r.Context().Value(bounded{}).(*conn)
	return !ok || c.admit()
}

// Refuse responds with an error and closes the connection, useless to a refused caller.
func Refuse(w http.ResponseWriter, code int, why string) {
	w.Header().Set("Connection", "close")
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, why, code)
}
