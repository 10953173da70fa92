// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simnodes

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/internal/pacing"
)

// lane is a queue of actions with dedicated workers. Adding never blocks, so the goroutine that
// owns the fleet never waits for the API server. The fleet has at most one action in flight per
// object, which bounds the queue.
//
// A lane can yield to another lane: while the other lane has queued actions, three quarters of this
// lane's workers pause. An overloaded API server then serves the Leases first, and the nodes stay
// alive.
type lane struct {
	first *lane // lane to yield to; may be nil

	mu    sync.Mutex
	queue []simkubelet.Action
	more  chan struct{} // holds one element if a worker should check the queue
}

// holdBack is the interval at which a paused worker checks again. It is short compared with the
// time between two renewals.
const holdBack = 20 * time.Millisecond

// sendFunc carries out an action. It is called by several workers concurrently.
type sendFunc func(ctx context.Context, a simkubelet.Action) (simkubelet.Outcome, any)

// startLane starts the workers, which end with ctx. They send the result of each action to done,
// except for reports, whose outcome is not needed. The first quarter of the workers, and at least
// one, never yields to first.
func startLane(ctx context.Context, group *errgroup.Group, workers int, first *lane, send sendFunc, done chan<- result) *lane {
	l := &lane{first: first, more: make(chan struct{}, 1)}
	for i := range workers {
		// Some workers never yield: pods must progress, even if slowly, while heartbeats are
		// queued.
		yields := first != nil && i >= max(workers/4, 1)
		group.Go(func() error {
			for {
				// Pause before taking an action, so that a pausing worker holds none.
				if yields && !l.letPass(ctx) {
					return nil
				}
				a, ok := l.takeAction(ctx)
				if !ok {
					return nil
				}
				outcome, object := send(ctx, a)
				if a.Kind == simkubelet.Report {
					continue
				}
				select {
				case done <- result{a, outcome, object}:
				case <-ctx.Done():
					return nil
				}
			}
		})
	}

	return l
}

// addAction adds an action at the end of the queue.
func (l *lane) addAction(a simkubelet.Action) {
	l.mu.Lock()
	l.queue = append(l.queue, a)
	l.mu.Unlock()
	l.wakeTaker()
}

// len returns the number of actions not begun.
func (l *lane) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// wakeTaker wakes one worker. A worker that leaves more in the queue wakes the next one.
func (l *lane) wakeTaker() { pacing.Signal(l.more) }

// letPass waits until the queue of l.first is empty. It returns false if ctx has ended.
func (l *lane) letPass(ctx context.Context) bool {
	for l.first.len() > 0 {
		if !pacing.Sleep(ctx, holdBack) {
			return false
		}
	}
	return true
}

// takeAction waits for an action; it returns false if ctx has ended. Actions are taken in the order
// of addition.
func (l *lane) takeAction(ctx context.Context) (simkubelet.Action, bool) {
	for {
		if ctx.Err() != nil {
			return simkubelet.Action{}, false
		}
		l.mu.Lock()
		if len(l.queue) > 0 {
			a := l.queue[0]
			// Clear the element, because the queue's array outlives the action.
			l.queue[0] = simkubelet.Action{}
			l.queue = l.queue[1:]
			rest := len(l.queue)
			l.mu.Unlock()
			if rest > 0 {
				l.wakeTaker()
			}
			return a, true
		}

		l.mu.Unlock()
		select {
		case <-l.more:
		case <-ctx.Done():
		}
	}
}
