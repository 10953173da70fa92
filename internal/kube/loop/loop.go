// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Loop is a core with its driver. E are the core's events, A its actions. Step, Wake, EverySecond
// and Do are called by the owner: the goroutine of Run.
type Loop[E, A any] struct {
	Name string // for the log
	// Step is the core's. Wake returns the latest time for the next Tick; it is called when
	// everything in the inbox has been taken in.
	Step func(now time.Time, event E) []A
	Wake func(now time.Time) time.Time
	Tick E
	// EverySecond, if set, is called each second.
	EverySecond func()
	// Do carries an action out, or delegates it, and returns nil; or it returns the request that
	// carries it out, which runs on a separate goroutine and returns the response. Its context ends
	// with that of Run.
	Do func(ctx context.Context, action A) (request func(context.Context) E)

	inbox  inbox[E]
	spare  []message[E]    // the next array for the inbox; cleared
	begun  time.Time       // of New; has both clocks
	life   context.Context // context of Run, set before any goroutine begins
	beside sync.WaitGroup  // feeds and requests
}

// New returns an empty loop.
func New[E, A any](name string) *Loop[E, A] {
	return &Loop[E, A]{
		Name: name, inbox: inbox[E]{more: make(chan struct{}, 1)}, begun: time.Now(), life: context.Background(),
	}
}

// Now is the clock of the core. It begins with the wall clock's time, but ignores later settings of
// that. Its times lack a monotonic reading, so that a replay gives a core the same times.
func (l *Loop[E, A]) Now() time.Time { return l.begun.Round(0).UTC().Add(time.Since(l.begun)) }

// See leaves an event for the core, which takes it in after the earlier ones. It never blocks, and
// may be called from any goroutine, even before Run.
func (l *Loop[E, A]) See(event E) { l.inbox.put(message[E]{event: event}) }

// Show is See for an object shown by a watch, and its size. It blocks while too many objects wait
// for the owner, until the loop ends.
func (l *Loop[E, A]) Show(event E, size int) {
	l.inbox.waitForRoom(l.life.Done())
	l.inbox.put(message[E]{event: event, size: size})
}

// Look makes the owner call what between two steps. It does not wait for that.
func (l *Loop[E, A]) Look(what func()) { l.inbox.put(message[E]{look: what}) }

// Run runs the core and its feeds until the context ends; it returns when all feeds and requests
// have ended. A loop runs once. If the core panics, Run does not wait for them: the process must
// exit.
func (l *Loop[E, A]) Run(ctx context.Context, feeds ...func(context.Context)) {
	log := klog.FromContext(ctx)
	log.Info("Starting", "controller", l.Name)
	l.life = ctx
	for _, feed := range feeds {
		l.beside.Go(func() { feed(ctx) })
	}
	l.own(ctx)
	l.beside.Wait()
	log.Info("Stopped", "controller", l.Name)
}

// own is the owner's life: take in everything, let time take effect if it is due, else sleep until
// the next message.
func (l *Loop[E, A]) own(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var second <-chan time.Time
	if l.EverySecond != nil {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		second = ticker.C
	}
	for ctx.Err() == nil {
		if left := l.CatchUp().Sub(l.Now()); left > 0 {
			timer.Reset(left)
			select {
			case <-ctx.Done():
				return
			case <-l.inbox.more:
				continue
			case <-second:
				l.EverySecond()
				continue
			case <-timer.C:
			}
		}
		// Either the time has passed, or the core wants to continue immediately. The inbox is
		// checked between two Ticks.
		l.Take(l.Tick)
		select {
		case <-second: // even if the core is not idle
			l.EverySecond()
		default:
		}
	}
}

// CatchUp takes in the whole inbox, and returns the core's next wake-up time. Only the owner may
// call it.
func (l *Loop[E, A]) CatchUp() (wake time.Time) {
	messages := l.inbox.take(l.spare)
	for i := range messages {
		if m := &messages[i]; m.look != nil {
			m.look()
		} else {
			l.Take(m.event)
			l.inbox.release(m.size)
		}
		messages[i] = message[E]{}
	}
	l.spare = messages
	return l.Wake(l.Now())
}

// Take gives the core an event immediately, and carries out the resulting actions. Only the owner
// may call it.
func (l *Loop[E, A]) Take(event E) { l.CarryOut(l.Step(l.Now(), event)) }

// CarryOut carries out actions of the core. Only the owner may call it.
func (l *Loop[E, A]) CarryOut(actions []A) {
	for _, action := range actions {
		if request := l.Do(l.life, action); request != nil {
			l.beside.Go(func() { l.See(request(l.life)) })
		}
	}
}

// Left returns the events that arrived too late: the inbox after Run.
func (l *Loop[E, A]) Left() (events []E) {
	for _, m := range l.inbox.take(nil) {
		if m.look == nil {
			events = append(events, m.event)
		}
	}
	return events
}
