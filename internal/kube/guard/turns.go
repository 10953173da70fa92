// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// asking is the number of requests of a kind in flight; a flood of tokens must not reach the
	// API server as one.
	asking = 8
	// askingEach is the maximum per source, so that one source cannot occupy all.
	askingEach = 2
	// rate and burst limit the requests of a source, per second and initially. A scraper has one
	// token, and causes one request per Remember.
	rate, burst = 10, 40
	// sources is the number of tracked sources, and forget the time until one is dropped.
	sources = 4096
	forget  = time.Minute
)

// turns schedules the requests of each source.
type turns struct {
	all chan struct{} // has room for the current ones

	mu      sync.Mutex
	sources *cache.LRUExpireCache // by source: *turn
}

// turn is the state of one source.
type turn struct {
	rate flowcontrol.RateLimiter
	own  chan struct{}
}

// newTurns returns turns, none of them taken.
func newTurns() *turns {
	return &turns{all: make(chan struct{}, asking), sources: cache.NewLRUExpireCache(sources)}
}

// turnOf returns the state of a source. A forgotten source starts over, with a full burst: the
// overall bound (asking) still holds.
func (t *turns) turnOf(source string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.sources.Get(source); ok {
		return known.(*turn)
	}
	s := &turn{rate: flowcontrol.NewTokenBucketRateLimiter(rate, burst), own: make(chan struct{}, askingEach)}
	t.sources.Add(source, s, forget)
	return s
}

// take waits for the source's turn. A source with too many requests is refused immediately: waiting
// would hold its connections, and memory with them. Without an error, done must be called when the
// request is completed.
func (t *turns) take(ctx context.Context, source string) (done func(), err error) {
	s := t.turnOf(source)
	if !s.rate.TryAccept() {
		return nil, ErrBusy
	}
	select {
	case s.own <- struct{}{}:
	case <-ctx.Done():
		return nil, ErrBusy
	}
	select {
	case t.all <- struct{}{}:
	case <-ctx.Done():
		<-s.own
		return nil, ErrBusy
	}
	return func() { <-t.all; <-s.own }, nil
}

// Source returns the source of a remote address: the host, or for IPv6 its /64. A host with IPv6
// usually owns a network of that size, and could otherwise use a new address each time.
//
// For example, "10.1.2.3:4711" is 10.1.2.3, and "[2001:db8::1:2]:443" is 2001:db8::/64.
func Source(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	address = address.Unmap().WithZone("")
	if address.Is6() {
		return netip.PrefixFrom(address, 64).Masked().String()
	}
	return address.String()
}
