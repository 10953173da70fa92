// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"time"

	"github.com/berth-k8s/berth/internal/response"
)

// Timeout is the time after which a process gives up a request without a response.
const Timeout = 2 * time.Second

// longestRetryAfter is the longest Retry-After that Verify expects a core to obey.
const longestRetryAfter = 4 * time.Second

// Request is a request of a process to its API server.
type Request[E any] struct {
	Kind      string // the verb and the resource
	Object    string
	Namespace string
	Reads     bool
	Takes     time.Duration // time between the arrival and the end of the request
	// Do carries out the request and returns the response.
	Do func() E
	// Ineffective returns the response of a success without effect; nil if there is none.
	Ineffective func() E
	// Fail returns the response for a failure; nil if the process expects no response.
	Fail func(outcome response.Outcome, retryAfter time.Duration) E
}

// Line connects a process with its API server.
type Line[E, A any] struct {
	Process *Process[E, A]
	// Least and Most bound the time that a request takes in each direction.
	Least, Most time.Duration
	Faults
	Requests
}

// Send sends a request. The process receives exactly one response, unless it is killed before.
// A request that was sent is carried out even if the process is killed meanwhile.
func (l *Line[E, A]) Send(r Request[E]) {
	p := l.Process
	if l.KillAt > 0 {
		if l.KillAt--; l.KillAt == 0 {
			l.inject(r.Kind, Killed)
			if !l.KillAfter {
				p.Kill()
				return
			}
			defer p.Kill()
		}
	}
	t := p.Time
	l.Count(t.Now, r.Kind, r.Object)
	there, back := t.Between(l.Least, l.Most), t.Between(l.Least, l.Most)
	d := l.Draw(t, Target{r.Kind, r.Namespace, r.Object, r.Reads}, r.Ineffective != nil)
	fault := d.Fault
	there, back = there+d.Before+r.Takes, back+d.After
	outcome, done := fault.Outcome()
	if fault != None && l.Faulty != nil {
		l.Faulty(r.Kind)
	}

	sender := p.acts
	var responded func(retryAfter time.Time)
	if r.Fail != nil {
		responded = l.send(t.Now, sending{sender, r.Kind + " " + r.Object})
	}
	respond := func(wait time.Duration, e E) {
		if r.Fail != nil {
			p.later(wait, func() {
				p.receive(func() {
					responded(t.Now.Add(min(d.RetryAfter, longestRetryAfter)))
					p.step(sender, e)
				})
			})
		}
	}
	switch fault {
	case None:
		life := p.life
		t.After(there, func() {
			if e := r.Do(); p.life == life {
				respond(back, e)
			}
		})
		return
	case Unanswered, Belated:
		back = max(back, t.Between(0, Timeout))
		if fault == Belated {
			t.After(there+back+t.Between(0, Timeout), func() { r.Do() })
		}
	case Ineffective:
		life := p.life
		t.After(there, func() {
			if p.life == life {
				respond(back, r.Ineffective())
			}
		})
		return
	}
	if done {
		t.After(there, func() { r.Do() })
	}
	if r.Fail != nil {
		respond(there+back, r.Fail(outcome, d.RetryAfter))
	}
}
