package live

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// statuses writes the statuses of objects of one kind: for each object one at a time, in the order
// in which the core decided them, so that an older one never overwrites a newer one. What the API
// server was unable to take is written again until it does: the core says it once, and autoscalers
// act on it.
//
// What can wait is written at a bounded rate, the latest of each object. Somebody who makes many
// pods and has them wait and wake could otherwise have the scheduler, whose decisions take
// microseconds, write without a pause, and whoever acts on changes of pods, too.
type statuses[W any] struct {
	by    *workers
	write func(context.Context, W) error
	// merged merges two writes into one with the same effect.
	merged func(older, newer W) W

	unhurried *rate.Limiter

	mu    sync.Mutex
	under map[types.UID]*statusesOf[W]
}

// statusesOf is the state of one object: a write is under way, or waits to be tried again.
type statusesOf[W any] struct {
	about metav1.Object
	next  *W          // after the one under way; nil: nothing yet
	again *time.Timer // until next is written; nil: one is under way
	late  bool        // next may be late
	pause time.Duration
}

// Writes that can wait, per second, and how many of them need not.
const unhurriedRate, unhurriedBurst = 20, 100

// longestPause is between two tries to write a status. Thousands of objects may wait to be written
// when the API server is back.
const longestPause = 30 * time.Second

func newStatuses[W any](by *workers, write func(context.Context, W) error, merged func(older, newer W) W) *statuses[W] {
	return &statuses[W]{by: by, write: write, merged: merged, unhurried: rate.NewLimiter(unhurriedRate, unhurriedBurst), under: map[types.UID]*statusesOf[W]{}}
}

// add queues a write that may be late, or may not.
func (s *statuses[W]) add(about metav1.Object, newest W, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, busy := s.under[about.GetUID()]
	if !busy {
		o = &statusesOf[W]{about: about}
		s.under[about.GetUID()] = o
	}
	o.late = late && (o.late || o.next == nil)
	if o.next != nil {
		newest = s.merged(*o.next, newest)
	}
	o.next = &newest
	switch {
	case !busy && late:
		s.startLater(o)
	case !busy:
		s.start(o)
	case o.again != nil && !late && o.again.Stop():
		s.start(o)
	}
}

// startLater lets a worker write what is next, which may be late. It is called with the lock held.
func (s *statuses[W]) startLater(o *statusesOf[W]) { s.startAfter(o, s.unhurried.Reserve().Delay()) }

// startAfter lets a worker write what is next after a time. It is called with the lock held.
func (s *statuses[W]) startAfter(o *statusesOf[W], after time.Duration) {
	o.again = time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.start(o)
	})
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
		o.next, o.late = nil, false
		s.mu.Unlock()
		err := s.write(ctx, one)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Status not written", "of", klog.KObj(o.about), "err", err)
		}
		s.mu.Lock()
		switch {
		case answered(err) && o.next != nil && o.late:
			o.pause = 0
			s.startLater(o)
			return
		case answered(err):
			o.pause = 0
		case o.next != nil:
			next := s.merged(one, *o.next)
			o.next = &next
		default:
			o.next, o.pause = &one, min(max(2*o.pause, firstPause), longestPause)
			s.startAfter(o, o.pause/2+rand.N(o.pause))
			return
		}
	}
	delete(s.under, o.about.GetUID())
}
