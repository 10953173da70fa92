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

// statuses writes the statuses of objects of one kind. The statuses of one object are written one
// at a time, in the order of the core's actions, so that an older status never overwrites a newer
// one. A write without a final response (isAnswered) is retried until it succeeds, because the core
// requests it only once, and autoscalers act on the status.
//
// Deferrable writes are sent at a bounded rate, and only the latest write of an object is sent.
// Otherwise a user could create many pods that are requeued again and again, and make the
// scheduler, which decides them in microseconds, write statuses continuously, which would burden
// every client that watches pods.
type statuses[W any] struct {
	workers *workers                       // shared with other work that is not urgent
	write   func(context.Context, W) error // one attempt; repeated unless isAnswered
	// merged merges two writes into one with the same effect.
	merged func(older, newer W) W
	// dropped, if set, is called for writes that will not be made.
	dropped func(W)

	unhurried *rate.Limiter // limits the deferrable writes of all objects together

	mu      sync.Mutex
	pending map[types.UID]*statusesOf[W] // only objects with pending writes
	late    []*statusesOf[W]             // objects with deferred writes, in order; may include objects without a deferred write
	turn    *time.Timer                  // calls takeTurns for the first object in late; nil if late is empty
}

// statusesOf is the state of one object. A write of the object is in flight, is queued for a
// worker, is deferred, or waits for a retry.
type statusesOf[W any] struct {
	object   metav1.Object // nil: the object was forgotten
	next     *W            // the write to make next, or nil
	inFlight bool          // a write is in flight
	late     bool          // that write is deferrable
	waits    bool          // that write is deferred: the object is in statuses.late
	again    *time.Timer   // timer that retries that write
	pause    time.Duration // pause before that retry; 0 if the last attempt had a final response
}

// unhurriedRate is the limit of deferrable writes per second, and unhurriedBurst the maximum size
// of a burst.
const unhurriedRate, unhurriedBurst = 20, 100

// longestPause is the maximum pause between two attempts to write a status. It spreads the retries
// of thousands of objects after an outage.
const longestPause = 30 * time.Second

// newStatuses returns a statuses without pending writes, whose writes are carried out by pool.
func newStatuses[W any](pool *workers, write func(context.Context, W) error, merged func(older, newer W) W) *statuses[W] {
	return &statuses[W]{workers: pool, write: write, merged: merged,
		unhurried: rate.NewLimiter(unhurriedRate, unhurriedBurst), pending: map[types.UID]*statusesOf[W]{}}
}

// addWrite queues a write, which is deferrable if late is set. If the object has a pending write,
// the two are merged, and the result is deferrable only if both are. A write that is not deferrable
// starts immediately, even if the object's pending write is deferred or waits for a retry.
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

// forgetObject drops the pending writes of an object that was deleted, or no longer needs them. A
// write in flight is finished.
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
	o.object = nil // releases the memory of the object, because the entry may stay in a queue for long
	delete(s.pending, uid)
}

// startLater defers the object's next write. It is called with the lock held.
func (s *statuses[W]) startLater(o *statusesOf[W]) {
	o.waits = true
	s.late = append(s.late, o)
	if s.turn == nil {
		s.takeTurns()
	}
}

// takeTurns starts as many deferred writes as the rate allows now, and sets the timer for the next
// one. It is called with the lock held.
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
			// The reservation is canceled, because another object may be the first in late when the
			// timer fires.
			turn.CancelAt(now)
			return
		}
	}

	s.late = nil
}

// startWriting queues the object's next write for a worker. It is called with the lock held.
func (s *statuses[W]) startWriting(o *statusesOf[W]) {
	o.again, o.waits = nil, false
	s.workers.addTask(func(ctx context.Context) { s.writeAll(ctx, o) })
}

// writeAll writes until the object has no pending writes, its next write is deferred, or a write
// must be retried later. The lock is released only while a write is in flight. There is at most one
// writeAll per object, and the object stays in pending until its last write has ended.
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
		// A newer write was added during the failed one. Both are merged and sent immediately.
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
