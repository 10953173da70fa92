// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

const (
	// largestReview is larger than two objects of the maximum size in etcd, as JSON, in which some
	// characters take six bytes.
	largestReview = 20 << 20
	// mostElements is larger than the number of list elements of any two objects in etcd. A
	// container can take two bytes in a review, and 408 bytes in memory, so reviews with more than
	// manyElements have an additional lane.
	manyElements, mostElements = 5_000, 500_000
	// smallReview is larger than nearly every review of a pod.
	smallReview = 256 << 10
	// streams limits the streams of one connection. An API server that needs more opens another
	// connection.
	streams = 100
	// buffered is the number of bytes that a connection may send before the webhook reads them.
	buffered = 256 << 10
)

// connections bounds open connections. Connections of API servers are few and stay open;
// connections of other callers stay until newer ones displace them. Without --client-ca-file, API
// servers cannot be distinguished from other callers.
var connections = guard.Bounds{Unadmitted: 256, PerSource: 64, Admitted: 256}

// errBusy leaves a review without a response: the API server retries, or applies the failure
// policy.
var errBusy = errors.New("too many reviews are under way; try again in a second")

// lanes bound the number of concurrent reviews, and so their memory. Small and large reviews have
// separate lanes, so that a few large or slow reviews do not delay reviews of pods. The bodies in
// flight total at most 128 × 256 KiB and 4 × 20 MiB, that is, 112 MiB.
type lanes struct{ small, large, many *lane }

// newLanes returns empty lanes. Their capacities follow from the sizes of reviews; see lanes.
func newLanes() *lanes {
	return &lanes{small: newLane(128, 64), large: newLane(4, 2), many: newLane(1, 1)}
}

// elementsIn returns the number of list elements in a JSON text, apart from strings and from the
// first of each list.
func elementsIn(body []byte) (n int) {
	inString := false
	for i := 0; i < len(body)-1; i++ {
		switch {
		case inString && body[i] == '\\':
			i++
		case body[i] == '"':
			inString = !inString
		case !inString && body[i] == ',' && body[i+1] != '"':
			n++
		}
	}
	return n
}

// laneFor returns the lane for a review of the announced Content-Length, and its maximum length. A
// review of unknown length counts as large.
func (l *lanes) laneFor(announced int64) (*lane, int64) {
	if announced >= 0 && announced <= smallReview {
		return l.small, smallReview
	}
	return l.large, largestReview
}

// lane limits the reviews in flight, in total and per source. One source gets at most half of the
// lane, so that it cannot block all other sources.
type lane struct {
	all  chan struct{} // holds an element per review in flight
	each int           // maximum number of elements per source

	mu      sync.Mutex
	sources map[string]*place // of active and waiting sources
}

// place is a source's share of a lane. It exists while reviews of the source are in flight or wait
// for a slot.
type place struct {
	own   chan struct{}
	users int
}

// newLane returns an empty lane.
func newLane(all, each int) *lane {
	return &lane{all: make(chan struct{}, all), each: each, sources: map[string]*place{}}
}

// takeRoom waits for a slot in the lane until the API server's timeout. If it returns no error, the
// caller must call leave after responding to the review. It acquires a slot in the source's share
// first, so that a source at its limit occupies no shared slots.
func (l *lane) takeRoom(ctx context.Context, source string) (leave func(), err error) {
	p := l.joinSource(source)
	select {
	case p.own <- struct{}{}:
	case <-ctx.Done():
		l.leaveSource(source, p)
		return nil, errBusy
	}

	select {
	case l.all <- struct{}{}:
	case <-ctx.Done():
		<-p.own
		l.leaveSource(source, p)
		return nil, errBusy
	}

	return func() {
		<-l.all
		<-p.own
		l.leaveSource(source, p)
	}, nil
}

// joinSource counts a review of the source, until leaveSource.
func (l *lane) joinSource(source string) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.sources[source]
	if p == nil {
		p = &place{own: make(chan struct{}, l.each)}
		l.sources[source] = p
	}
	p.users++
	return p
}

// leaveSource ends a review of the source, and removes the source after its last review, so that
// the map holds only active and waiting sources.
func (l *lane) leaveSource(source string, p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(l.sources, source)
	}
}
