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
	// asking is the maximum number of reviews of a kind in flight, so that a flood of tokens does
	// not overload the API server.
	asking = 8
	// askingEach is the maximum number per source, so that a single source cannot occupy all slots.
	askingEach = 2
	// rate and burst limit the reviews of a source, in reviews per second and initially. A scraper
	// uses one token, and causes one review per Remember.
	rate, burst = 10, 40
	// sources is the maximum number of tracked sources, and forget the time after which the state
	// of a source is dropped.
	sources = 4096
	forget  = time.Minute
)

// turns limits the reviews in total and per source.
type turns struct {
	all chan struct{} // has an element per review in flight

	mu      sync.Mutex
	sources *cache.LRUExpireCache // by source: *turn
}

// turn is the state of one source.
type turn struct {
	rate flowcontrol.RateLimiter
	own  chan struct{}
}

// turnOf returns the state of a source. After the state was dropped, the source has a full burst
// again, but the total bound (asking) still applies.
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

// take waits for the source's turn. If the source exceeds its rate, take returns ErrBusy
// immediately, because waiting callers would occupy connections and memory. If there is no error,
// the caller must call done after the review.
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

// Source returns the source of a remote address: the host, or for IPv6 its /64. An IPv6 host
// usually owns a network of that size, and could otherwise use a different address for each
// connection.
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
