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
	by    *workers                       // shared with everything else that is not urgent
	write func(context.Context, W) error // one try; isAnswered tells whether it must be repeated
	// merged merges two writes into one with the same effect.
	merged func(older, newer W) W
	// dropped, if set, is told of what will not be written.
	dropped func(W)

	unhurried *rate.Limiter // of the writes that can wait, over all objects

	mu    sync.Mutex
	under map[types.UID]*statusesOf[W] // objects about which something is to be written; no others
	late  []*statusesOf[W]             // those that wait their turn, and perhaps some that no longer do
	turn  *time.Timer                  // of the next one; nil: none waits
}

// statusesOf is the state of one object: a write is under way, waits for a worker, waits its turn,
// or waits to be tried again.
type statusesOf[W any] struct {
	about metav1.Object // nil: forgotten
	next  *W            // after the one under way; nil: nothing yet
	under bool          // a write is under way
	late  bool          // next may be late
	waits bool          // its turn
	again *time.Timer   // until next is tried again
	pause time.Duration // before next is tried again; 0: the last try was answered
}

// Writes that can wait, per second, and how many of them need not.
const unhurriedRate, unhurriedBurst = 20, 100

// longestPause is between two tries to write a status. Thousands of objects may wait to be written
// when the API server is back.
const longestPause = 30 * time.Second

// newStatuses returns an empty queue of writes whose workers are by.
func newStatuses[W any](by *workers, write func(context.Context, W) error, merged func(older, newer W) W) *statuses[W] {
	return &statuses[W]{by: by, write: write, merged: merged,
		unhurried: rate.NewLimiter(unhurriedRate, unhurriedBurst), under: map[types.UID]*statusesOf[W]{}}
}

// addWrite queues a write that may be late, or may not. It merges with one that waits; the two are
// late only if both may be. One that may not be late goes ahead at once, also where the object
// waits its turn or to be tried again.
func (s *statuses[W]) addWrite(about metav1.Object, newest W, late bool) {
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
		s.startWriting(o)
	case late:
	case o.waits, o.again != nil && o.again.Stop():
		s.startWriting(o)
	}
}

// forgetObject drops what is not being written: the object has it no more, or is gone. A write that
// is under way is finished.
func (s *statuses[W]) forgetObject(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.under[uid]
	if o == nil {
		return
	}
	if o.next != nil && s.dropped != nil {
		s.dropped(*o.next)
	}
	o.next, o.late = nil, false
	if o.under {
		return
	}
	o.waits = false
	if o.again != nil {
		o.again.Stop()
	}
	o.about = nil // workers may come to it much later
	delete(s.under, uid)
}

// startLater lets a worker write what is next when it is its turn. It is called with the lock held.
func (s *statuses[W]) startLater(o *statusesOf[W]) {
	o.waits = true
	s.late = append(s.late, o)
	if s.turn == nil {
		s.takeTurns()
	}
}

// takeTurns starts what waits as far as the rate allows it now. It is called with the lock held.
func (s *statuses[W]) takeTurns() {
	s.turn = nil
	for len(s.late) > 0 {
		now := time.Now()
		if !s.late[0].waits {
			s.late = s.late[1:]
		} else if turn := s.unhurried.ReserveN(now, 1); turn.DelayFrom(now) == 0 {
			s.startWriting(s.late[0])
		} else {
			s.turn = time.AfterFunc(turn.DelayFrom(now), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.takeTurns()
			})
			// The token goes back: it is taken when the timer has run, by whoever is first in the
			// list then.
			turn.CancelAt(now)
			return
		}
	}

	s.late = nil
}

// startWriting lets a worker write what is next. It is called with the lock held.
func (s *statuses[W]) startWriting(o *statusesOf[W]) {
	o.again, o.waits = nil, false
	s.by.addTask(func(ctx context.Context) { s.writeAll(ctx, o) })
}

// writeAll writes until there is nothing more to write about the object, or until the API server is
// unable to take it. The lock is released only while a write is under way. Of one object there is
// never more than one writeAll at work, and its entry in under goes only when nothing is left.
func (s *statuses[W]) writeAll(ctx context.Context, o *statusesOf[W]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.about == nil {
		return
	}

	for o.next != nil {
		one := *o.next
		o.next, o.late, o.under = nil, false, true
		s.mu.Unlock()
		err := s.write(ctx, one)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Status not written", "of", klog.KObj(o.about), "err", err)
		}
		s.mu.Lock()
		o.under = false
		switch {
		case isAnswered(err) && o.next != nil && o.late:
			o.pause = 0
			s.startLater(o)
			return
		case isAnswered(err):
			o.pause = 0
		// A newer write has come while this one failed. Both are tried at once, and without a
		// pause.
		case o.next != nil:
			next := s.merged(one, *o.next)
			o.next = &next
		default:
			o.next, o.pause = &one, min(max(2*o.pause, firstPause), longestPause)
			o.again = time.AfterFunc(o.pause/2+rand.N(o.pause), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.startWriting(o)
			})
			return
		}
	}

	delete(s.under, o.about.GetUID())
}
