// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package virtual

import "time"

// Core is a state machine that decides.
type Core[E, A any] interface {
	Step(now time.Time, event E) []A
	// Wake returns the time of the next Tick if no event arrives first.
	Wake() (at time.Time, ok bool)
}

// Process runs a core, over all its lives: it can be killed, and started again without state.
type Process[E, A any] struct {
	Time *Time
	New  func() Core[E, A] // makes the core of a life
	Tick E
	Do   func(action A)
	// Ended, if set, is called at the end of each life.
	Ended func()
	// Observe, if set, is called with each event and the resulting actions.
	Observe func(event E, actions []A)
	// Ahead is the time by which the process's wall clock is ahead of the API server's clock.
	Ahead time.Duration

	core    *instance[E, A] // nil: not running
	twin    *instance[E, A] // a second process, started by mistake; nil if there is none
	acts    *instance[E, A] // the process that sends the current request
	life    int             // incremented by Start and Kill; responses for earlier lives are lost
	watches []*Watch
	waiting []func() // events that arrived while the process was frozen
	frozen  bool
}

// instance is a running process.
type instance[E, A any] struct {
	core    Core[E, A]
	stepped bool      // since wakeAt and wakes were determined
	wakeAt  time.Time // the core's Wake
	wakes   bool
}

// Add adds the process to its Time.
func (p *Process[E, A]) Add() { p.Time.processes = append(p.Time.processes, p) }

// Wall is the wall clock of the process.
func (p *Process[E, A]) Wall(now time.Time) time.Time { return now.Add(p.Ahead) }

// Start starts a new life without state. Its watches begin with full lists.
func (p *Process[E, A]) Start() {
	p.Kill()
	p.core = &instance[E, A]{core: p.New(), stepped: true}
	for _, w := range p.watches {
		w.list(true)
	}
}

// SetTwin starts or ends a second process with the same tasks, as after a mistake of an
// administrator. It receives the same watch events, and the responses to its own requests.
func (p *Process[E, A]) SetTwin(on bool) {
	p.twin = nil
	if on {
		p.twin = &instance[E, A]{core: p.New(), stepped: true}
		for _, w := range p.watches {
			w.list(true)
		}
	}
}

// Kill ends the life. Its state, undelivered events and outstanding responses are lost, but
// requests already sent are carried out.
func (p *Process[E, A]) Kill() {
	if p.core != nil && p.Ended != nil {
		p.Ended()
	}
	p.life++
	p.core, p.twin, p.waiting, p.frozen = nil, nil, nil, false
	for _, w := range p.watches {
		w.reset()
	}
}

// Freeze stops the process for a time, like a suspended virtual machine. Afterwards, the process
// gets the events of woken, and then the events that waited.
func (p *Process[E, A]) Freeze(d time.Duration, woken func() []E) {
	p.frozen = true
	p.later(d, func() {
		p.frozen = false
		for _, e := range woken() {
			p.Step(e)
		}
		p.frozen = true
		p.later(10*time.Millisecond, func() {
			p.frozen = false
			waiting := p.waiting
			p.waiting = nil
			for _, show := range waiting {
				p.receive(show)
			}
		})
	})
}

// Running reports whether the process is running.
func (p *Process[E, A]) Running() bool { return p.core != nil }

// Life returns the number of the life, which differs after each Start and Kill.
func (p *Process[E, A]) Life() int { return p.life }

// Core returns the core, or nil if the process is not running.
func (p *Process[E, A]) Core() Core[E, A] {
	if p.core == nil {
		return nil
	}
	return p.core.core
}

// Step passes an event to the core and carries out its actions. Without a running process, the
// event is lost.
func (p *Process[E, A]) Step(event E) {
	p.receive(func() {
		p.step(p.core, event)
		p.step(p.twin, event)
	})
}

// receive delivers an event, or holds it while the process is frozen.
func (p *Process[E, A]) receive(show func()) {
	switch {
	case p.core == nil:
	case p.frozen:
		p.waiting = append(p.waiting, show)
	default:
		show()
	}
}

// step passes an event to the instance, unless it has ended.
func (p *Process[E, A]) step(to *instance[E, A], event E) {
	if to == nil || to != p.core && to != p.twin {
		return
	}
	to.stepped = true
	actions := to.core.Step(p.Time.Now, event)
	if p.Observe != nil {
		p.Observe(event, actions)
	}
	life := p.life
	for _, action := range actions {
		if p.life != life { // killed by an earlier action
			return
		}
		p.acts = to
		p.Do(action)
	}
}

// later schedules a call that is dropped if this life has ended by then.
func (p *Process[E, A]) later(wait time.Duration, do func()) {
	life := p.life
	p.Time.After(wait, func() {
		if p.life == life {
			do()
		}
	})
}

func (p *Process[E, A]) wake() (at time.Time, ok bool) {
	if p.core == nil || p.frozen {
		return time.Time{}, false
	}
	at, ok = p.core.wake()
	if twin, wakes := p.twin.wake(); wakes && (!ok || twin.Before(at)) {
		return twin, true
	}
	return at, ok
}

func (i *instance[E, A]) wake() (at time.Time, ok bool) {
	if i == nil {
		return time.Time{}, false
	}
	if i.stepped {
		i.stepped = false
		i.wakeAt, i.wakes = i.core.Wake()
	}
	return i.wakeAt, i.wakes
}

func (p *Process[E, A]) tick() {
	for _, i := range []*instance[E, A]{p.core, p.twin} {
		if at, ok := i.wake(); ok && !at.After(p.Time.Now) {
			p.step(i, p.Tick)
		}
	}
}
