// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Loop drives a core. E is the type of the core's events, and A the type of its actions. Step,
// Wake, EverySecond and Do are called by the owner, which is the goroutine that called Run.
type Loop[E, A any] struct {
	Name string // for the log
	// Step passes an event to the core, and returns the resulting actions. Wake returns the time at
	// which the next Tick is due; it is called when the inbox is empty.
	Step func(now time.Time, event E) []A
	Wake func(now time.Time) time.Time
	Tick E
	// EverySecond, if set, is called each second.
	EverySecond func()
	// Do carries out an action and returns nil, or returns a request that carries it out. The loop
	// calls the request on a separate goroutine, and the result is the response for the core. Both
	// contexts end with that of Run.
	Do func(ctx context.Context, action A) (request func(context.Context) E)

	inbox  inbox[E]
	spare  []message[E]    // cleared array for later messages in the inbox
	begun  time.Time       // time of New, with a monotonic reading
	life   context.Context // context of Run, set before any goroutine begins
	beside sync.WaitGroup  // running feeds and requests
}

// New returns an empty loop.
func New[E, A any](name string) *Loop[E, A] {
	return &Loop[E, A]{
		Name: name, inbox: inbox[E]{more: make(chan struct{}, 1)}, begun: time.Now(), life: context.Background(),
	}
}

// Idle returns the function Wake of a core that may wait for events without a limit: the loop then
// sleeps for an hour.
func Idle(wake func() (at time.Time, ok bool)) func(now time.Time) time.Time {
	return func(now time.Time) time.Time {
		if at, ok := wake(); ok {
			return at
		}
		return now.Add(time.Hour)
	}
}

// Now returns the time by the clock of the core. The clock starts at the wall-clock time of New,
// but is not affected when the wall clock is set. The result has no monotonic reading, so that a
// replay can use the same times.
func (l *Loop[E, A]) Now() time.Time { return l.begun.Round(0).UTC().Add(time.Since(l.begun)) }

// See adds an event to the inbox. It never blocks, and may be called from any goroutine, even
// before Run.
func (l *Loop[E, A]) See(event E) { l.inbox.put(message[E]{event: event}) }

// Show adds an event with an object of the given size. It blocks while the queued objects exceed
// mostBytes, unless the loop ends.
func (l *Loop[E, A]) Show(event E, size int) {
	l.inbox.waitForRoom(l.life.Done())
	l.inbox.put(message[E]{event: event, size: size})
}

// Look makes the owner call f between two steps. It does not wait for the call.
func (l *Loop[E, A]) Look(f func()) { l.inbox.put(message[E]{look: f}) }

// Run runs the core and its feeds until the context ends, and returns when all feeds and requests
// have ended. A Loop can be run only once. If the core panics, Run does not wait for feeds and
// requests, and the process must exit.
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

// own is the main loop of the owner: it empties the inbox, and then either passes a Tick to the
// core if one is due, or sleeps until the next message.
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
		// The wake-up time has been reached. The inbox is emptied before each Tick.
		l.Take(l.Tick)
		select {
		case <-second: // also called if the core never sleeps
			l.EverySecond()
		default:
		}
	}
}

// CatchUp processes all messages in the inbox, and returns the core's next wake-up time. Only the
// owner may call it.
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

// Take passes an event to the core, bypassing the inbox, and carries out the resulting actions.
// Only the owner may call it.
func (l *Loop[E, A]) Take(event E) { l.CarryOut(l.Step(l.Now(), event)) }

// CarryOut carries out actions of the core. Only the owner may call it.
func (l *Loop[E, A]) CarryOut(actions []A) {
	for _, action := range actions {
		if request := l.Do(l.life, action); request != nil {
			l.beside.Go(func() { l.See(request(l.life)) })
		}
	}
}

// Left returns the events remaining in the inbox after Run.
func (l *Loop[E, A]) Left() (events []E) {
	for _, m := range l.inbox.take(nil) {
		if m.look == nil {
			events = append(events, m.event)
		}
	}
	return events
}
