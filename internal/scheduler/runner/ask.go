// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"cmp"
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// publishSizes stores the sizes of the core's state for other goroutines. Indexes 0 to 6 hold
// single numbers, 7 to 10 the number of pods in each section of the queue, and 11 to 14 the number
// of groups. The first section, queue.Active, has the value 1.
func (s *Scheduler) publishSizes() {
	is := s.core.Sizes()
	for i, n := range [...]int{is.Active, is.Backoff, is.Unschedulable, is.Gated, is.Nodes, is.Pods, is.Assumed} {
		s.sizes[i].Store(int64(n))
	}
	for place := queue.Active; place <= queue.Gated; place++ {
		s.sizes[6+place].Store(int64(is.Entities.Pods[place]))
		s.sizes[10+place].Store(int64(is.Entities.Groups[place]))
	}
	if s.core.Synced() {
		s.synced.Store(true)
	}
}

// Sizes returns the sizes of the scheduler's state after the last step. The numbers are read one by
// one, so they may be of different steps. Safe for all goroutines.
func (s *Scheduler) Sizes() cycle.Sizes {
	n := func(i int) int { return int(s.sizes[i].Load()) }
	is := cycle.Sizes{Active: n(0), Backoff: n(1), Unschedulable: n(2), Gated: n(3), Nodes: n(4), Pods: n(5), Assumed: n(6)}
	for place := queue.Active; place <= queue.Gated; place++ {
		is.Entities.Pods[place], is.Entities.Groups[place] = n(6+int(place)), n(10+int(place))
	}
	return is
}

// Synced reports whether the cluster has been listed, so that scheduling can begin. Safe for all
// goroutines.
func (s *Scheduler) Synced() bool { return s.synced.Load() }

// Look makes the owner call look with the scheduler's state between two decisions, in the order of
// the calls of Look. It does not wait for the call. look runs on the owner's goroutine: it must not
// block or retain its argument. It is never called after Run has ended. Safe for all goroutines.
func (s *Scheduler) Look(look func(cycle.View)) { s.loop.Look(func() { look(s.core.View()) }) }

// Decision returns the last decision about a pod, or nil if there is none in memory. Safe for all
// goroutines but the owner.
func (s *Scheduler) Decision(ctx context.Context, namespace, name string) (d *decision.Decision, err error) {
	err = s.callOwner(ctx, func() { d = s.core.Decision(cluster.Name{Namespace: namespace, Name: name}) })
	return d, err
}

// SetProfiles replaces the profiles between two decisions; see [cycle.Configured]. If the profiles
// are invalid, it returns an error and changes nothing. source is the content of the file from
// which the profiles were read, for a journal. Safe for all goroutines.
func (s *Scheduler) SetProfiles(ctx context.Context, profiles []cycle.Profile, source []byte) error {
	var failed error
	err := s.callOwner(ctx, func() {
		if failed = s.core.Check(profiles); failed == nil {
			failed = s.checkStripped(profiles)
		}
		if failed != nil {
			return
		}
		s.made.Profiles = profiles
		s.loop.Take(cycle.Configured{Profiles: profiles, Source: source})
	})
	return cmp.Or(err, failed)
}

// callOwner calls f on the owner's goroutine, and waits for it to return. If callOwner returns an
// error, f has not been called, and never will be: the task leaves the state waiting either when
// the owner begins the call or when the caller gives up, whichever is first. The owner itself must
// not call callOwner.
func (s *Scheduler) callOwner(ctx context.Context, f func()) error {
	t, done := &task{}, make(chan struct{})
	s.loop.Look(func() {
		if t.state.CompareAndSwap(waiting, begun) {
			defer close(done)
			f()
		}
	})

	err := context.Canceled
	select {
	case <-done:
	case <-s.ended:
	case <-ctx.Done():
		err = ctx.Err()
	}

	if t.state.CompareAndSwap(waiting, withdrawn) {
		return err
	}
	<-done
	return nil
}

// Activate moves pending pods to the active queue, whatever they wait for. Safe for all goroutines.
func (s *Scheduler) Activate(pods ...types.UID) { s.loop.See(cycle.Activate{Pods: pods}) }

// Happened passes the queue an event that the scheduler's watches do not deliver. Safe for all
// goroutines.
func (s *Scheduler) Happened(e *queue.Event) { s.loop.See(cycle.Happened{Event: e}) }
