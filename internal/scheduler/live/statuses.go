package live

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// statuses writes the statuses of objects of one kind: for each object one at a time, in the order
// in which the core decided them, so that an older one never overwrites a newer one. What the API
// server was unable to take is written again until it does: the core says it once, and autoscalers
// act on it.
type statuses[W any] struct {
	by    *workers
	write func(context.Context, W) error
	// merged merges two writes into one with the same effect.
	merged func(older, newer W) W

	mu    sync.Mutex
	under map[types.UID]*statusesOf[W]
}

// statusesOf is the state of one object: a write is under way, or waits to be tried again.
type statusesOf[W any] struct {
	about metav1.Object
	next  *W          // after the one under way; nil: nothing yet
	again *time.Timer // until next is tried again; nil: one is under way
	pause time.Duration
}

// longestPause is between two tries to write a status. Thousands of objects may wait to be written
// when the API server is back.
const longestPause = 30 * time.Second

func newStatuses[W any](by *workers, write func(context.Context, W) error, merged func(older, newer W) W) *statuses[W] {
	return &statuses[W]{by: by, write: write, merged: merged, under: map[types.UID]*statusesOf[W]{}}
}

// add queues a write.
func (s *statuses[W]) add(about metav1.Object, newest W) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, busy := s.under[about.GetUID()]
	if !busy {
		o = &statusesOf[W]{about: about}
		s.under[about.GetUID()] = o
	} else if o.next != nil {
		newest = s.merged(*o.next, newest)
	}
	o.next = &newest
	if !busy || o.again != nil && o.again.Stop() {
		s.start(o)
	}
}

// start lets a worker write what is next. It is called with the lock held.
func (s *statuses[W]) start(o *statusesOf[W]) {
	o.again = nil
	s.by.do(func(ctx context.Context) { s.all(ctx, o) })
}

// all writes until there is nothing more to write about the object, or until the API server is
// unable to take it.
func (s *statuses[W]) all(ctx context.Context, o *statusesOf[W]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o.next != nil {
		one := *o.next
		o.next = nil
		s.mu.Unlock()
		err := s.write(ctx, one)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Status not written", "of", klog.KObj(o.about), "err", err)
		}
		s.mu.Lock()
		switch {
		case answered(err):
			o.pause = 0
		case o.next != nil:
			next := s.merged(one, *o.next)
			o.next = &next
		default:
			o.next, o.pause = &one, min(max(2*o.pause, firstPause), longestPause)
			o.again = time.AfterFunc(o.pause/2+rand.N(o.pause), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.start(o)
			})
			return
		}
	}
	delete(s.under, o.about.GetUID())
}
