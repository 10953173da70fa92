// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

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

// statuses writes the statuses of objects of one kind: one at a time per object, in the order of
// the core's decisions, so that an older status never overwrites a newer one. A write refused by an
// unavailable API server is retried until it succeeds: the core reports it only once, and
// autoscalers act on it.
//
// Deferrable writes go out at a bounded rate, only the latest per object. Otherwise, a user
// creating many pods that alternate between waiting and waking could make the scheduler, with
// decisions in microseconds, write without a pause, and burden every watcher of pods.
type statuses[W any] struct {
	workers *workers                       // shared with all other work that is not urgent
	write   func(context.Context, W) error // one try; isAnswered decides whether it must be repeated
	// merged merges two writes into one with the same effect.
	merged func(older, newer W) W
	// dropped, if set, is called for writes that will not be made.
	dropped func(W)

	unhurried *rate.Limiter // limits deferrable writes, over all objects

	mu      sync.Mutex
	pending map[types.UID]*statusesOf[W] // only objects with pending writes
	late    []*statusesOf[W]             // objects waiting their turn; may include objects no longer waiting
	turn    *time.Timer                  // for the next turn; nil: none waits
}

// statusesOf is the state of one object: a write is in flight, waits for a worker, waits its turn,
// or waits to be retried.
type statusesOf[W any] struct {
	object   metav1.Object // nil: forgotten
	next     *W            // the next write after the write in flight, or nil
	inFlight bool          // a write is in flight
	late     bool          // next is deferrable
	waits    bool          // waits its turn
	again    *time.Timer   // retries next
	pause    time.Duration // before the retry of next; 0: the last try got a response
}

// Deferrable writes per second, and the size of the burst exempt from the limit.
const unhurriedRate, unhurriedBurst = 20, 100

// longestPause is the longest pause between two tries to write a status. Thousands of objects may
// wait to be written when the API server is back.
const longestPause = 30 * time.Second

// newStatuses returns an empty queue of writes carried out by the workers by.
func newStatuses[W any](by *workers, write func(context.Context, W) error, merged func(older, newer W) W) *statuses[W] {
	return &statuses[W]{workers: by, write: write, merged: merged,
		unhurried: rate.NewLimiter(unhurriedRate, unhurriedBurst), pending: map[types.UID]*statusesOf[W]{}}
}

// addWrite queues a write that may or may not be late. It is merged with a waiting write; the
// merged write may be late only if both may. A write that must not be late starts immediately, even
// if the object waits for its turn or for a retry.
func (s *statuses[W]) addWrite(about metav1.Object, newest W, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, busy := s.pending[about.GetUID()]
	if !busy {
		o = &statusesOf[W]{object: about}
		s.pending[about.GetUID()] = o
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

// forgetObject drops unstarted writes: the object no longer needs them, or was deleted. A write in
// flight is finished.
func (s *statuses[W]) forgetObject(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.pending[uid]
	if o == nil {
		return
	}
	if o.next != nil && s.dropped != nil {
		s.dropped(*o.next)
	}
	o.next, o.late = nil, false
	if o.inFlight {
		return
	}
	o.waits = false
	if o.again != nil {
		o.again.Stop()
	}
	o.object = nil // releases the object, because workers may reach the entry much later
	delete(s.pending, uid)
}

// startLater lets a worker write next when its turn arrives. It is called with the lock held.
func (s *statuses[W]) startLater(o *statusesOf[W]) {
	o.waits = true
	s.late = append(s.late, o)
	if s.turn == nil {
		s.takeTurns()
	}
}

// takeTurns starts the waiting writes as far as the rate allows it now. It is called with the lock
// held.
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
			// The token is returned: when the timer fires, the token goes to the first object in
			// the list at that time.
			turn.CancelAt(now)
			return
		}
	}

	s.late = nil
}

// startWriting lets a worker write next. It is called with the lock held.
func (s *statuses[W]) startWriting(o *statusesOf[W]) {
	o.again, o.waits = nil, false
	s.workers.addTask(func(ctx context.Context) { s.writeAll(ctx, o) })
}

// writeAll writes until the object has no pending writes, or until the API server is unable to take
// one. The lock is released only while a write is in flight. There is never more than one writeAll
// per object, and the object's entry in under is removed only after its last write.
func (s *statuses[W]) writeAll(ctx context.Context, o *statusesOf[W]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.object == nil {
		return
	}

	for o.next != nil {
		one := *o.next
		o.next, o.late, o.inFlight = nil, false, true
		s.mu.Unlock()
		err := s.write(ctx, one)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Status not written", "of", klog.KObj(o.object), "err", err)
		}
		s.mu.Lock()
		o.inFlight = false
		switch {
		case isAnswered(err) && o.next != nil && o.late:
			o.pause = 0
			s.startLater(o)
			return
		case isAnswered(err):
			o.pause = 0
		// A newer write was added while this one failed. Both are tried together immediately.
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

	delete(s.pending, o.object.GetUID())
}
