package webhook

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

const (
	// largestReview is above two objects of the size that etcd takes, as JSON.
	largestReview = 16 << 20
	// smallReview is above nearly every pod's.
	smallReview = 256 << 10
	// streams limits the streams of one connection. An API server that needs more opens another
	// connection.
	streams = 100
	// buffered is how many bytes a connection may send before they are read.
	buffered = 256 << 10
)

// connections of API servers are few and stay; so do those of strangers, until others come. Without
// --client-ca-file nobody can be told from an API server, and all are strangers.
var connections = guard.Bounds{Strangers: 256, PerSource: 64, Admitted: 256}

// errBusy is no answer: the API server tries again, or does what the failure policy says.
var errBusy = errors.New("too many reviews are under way; try again in a second")

// lanes bound how many reviews are read and answered at once, and so the memory that they take:
// small ones and large ones apart, so that a few large ones, or slow ones, do not hold up pods. The
// sum of the bodies under way is at most 128 × 256 KiB and 4 × 16 MiB, which is 96 MiB.
type lanes struct{ small, large *lane }

// newLanes returns empty lanes. How many reviews each takes follows from how large they may be; see
// lanes.
func newLanes() *lanes { return &lanes{small: newLane(128, 64), large: newLane(4, 2)} }

// laneFor the review that was announced (Content-Length), and how long it may be. One of unknown
// length is a large one.
func (l *lanes) laneFor(announced int64) (*lane, int64) {
	if announced >= 0 && announced <= smallReview {
		return l.small, smallReview
	}
	return l.large, largestReview
}

// lane limits the reviews in flight, in all and per source. One source has half of it at most, so
// that it cannot keep out all others.
type lane struct {
	all  chan struct{} // has an element per review in flight
	each int           // how many of them one source may have

	mu      sync.Mutex
	sources map[string]*place // of those that read or wait
}

// place is what a source has of a lane. It exists while the source reads or waits.
type place struct {
	own   chan struct{}
	users int
}

// newLane returns an empty lane.
func newLane(all, each int) *lane {
	return &lane{all: make(chan struct{}, all), each: each, sources: map[string]*place{}}
}

// takeRoom waits for room, as long as the API server waits for an answer. Without an error, leave
// must be called when the review is answered. The source's own room comes first: whoever waits for
// it holds none of the others'.
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

// joinSource counts a review of the source, which leaveSource takes back.
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

// leaveSource forgets the source with its last review, so that the map holds only those that read
// or wait.
func (l *lane) leaveSource(source string, p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(l.sources, source)
	}
}
