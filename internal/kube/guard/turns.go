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
	// asking is how many questions of a kind are under way at once; a flood of tokens must not
	// become one at the API server.
	asking = 8
	// askingEach is how many of them one source has, so that one cannot have all.
	askingEach = 2
	// rate and burst are how many questions a source may ask, per second and at first. A scraper
	// has one token, and asks once per Remember.
	rate, burst = 10, 40
	// sources is how many sources are tracked, and forget for how long.
	sources = 4096
	forget  = time.Minute
)

// turns decides when each source's questions are asked.
type turns struct {
	all chan struct{} // has room for those under way

	mu      sync.Mutex
	sources *cache.LRUExpireCache // by source: *turn
}

// turn is the state of one source.
type turn struct {
	rate flowcontrol.RateLimiter
	own  chan struct{}
}

// newTurns returns turns of which nobody has taken any.
func newTurns() *turns {
	return &turns{all: make(chan struct{}, asking), sources: cache.NewLRUExpireCache(sources)}
}

// of returns the state of a source. One that is forgotten begins anew, with a full burst: the bound
// on all (asking) holds all the same.
func (t *turns) of(source string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.sources.Get(source); ok {
		return known.(*turn)
	}
	s := &turn{rate: flowcontrol.NewTokenBucketRateLimiter(rate, burst), own: make(chan struct{}, askingEach)}
	t.sources.Add(source, s, forget)
	return s
}

// take waits for the source's turn. A source that has asked too much is refused at once: waiting
// would hold its connections, and memory with them. Without an error, done must be called when the
// question is answered.
func (t *turns) take(ctx context.Context, source string) (done func(), err error) {
	s := t.of(source)
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

// Source is what a remote address counts as: the host, or of IPv6 its /64. A host with IPv6 usually
// has a network of that size, and could else come from a new address each time.
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
