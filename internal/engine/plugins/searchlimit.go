package plugins

import (
	"context"
	"sync"
	"time"
)

// searchLimit bounds how long all searches for devices take together that a pod is decided with. A
// limit for each node would let a claim that is hard to serve hold up everyone for that long times
// the nodes.
type searchLimit struct {
	most time.Duration // 0: none

	mutex sync.Mutex
	until time.Time // zero until the first search
	late  int       // how many nodes were looked into when the time was over
}

// longestSearch bounds the limit itself, whatever is configured: the goroutine that searches
// decides for everyone. What was found on a node is kept, so the pod's next attempt goes on from
// there.
const longestSearch = 100 * time.Millisecond

// boundedSearch is how long a search may take where this much is configured; 0 is no limit.
func boundedSearch(configured time.Duration) time.Duration {
	if configured <= 0 {
		return longestSearch
	}
	return min(configured, longestSearch)
}

// pauseOfAttempts is less than what lies between two attempts of a pod, and more than between two
// questions of one attempt.
const pauseOfAttempts = 500 * time.Millisecond

// begin gives a pod that comes back later time again.
func (l *searchLimit) begin() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if !l.until.IsZero() && time.Since(l.until) > pauseOfAttempts {
		l.until, l.late = time.Time{}, 0
	}
}

// lateSearches is how many nodes are looked into when the time is over: a search that is small ends
// before it asks for the time, and what is left of a few nodes costs nobody anything.
const lateSearches = 64

// over tells whether nothing more is to be looked into.
func (l *searchLimit) over() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.most <= 0 || l.until.IsZero() || time.Now().Before(l.until) {
		return false
	}
	l.late++
	return l.late > lateSearches
}

// context returns one that ends when the time is over.
func (l *searchLimit) context() (ctx context.Context, done context.CancelFunc) {
	if l.most <= 0 {
		return context.Background(), func() {}
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.until.IsZero() {
		l.until = time.Now().Add(l.most)
	}
	return context.WithDeadline(context.Background(), l.until)
}
