// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// machine is the common part of this package's state machines. A step takes a time and an event,
// and returns actions. The time is constant during a step; the alarm triggers another step in the
// absence of events.
//
// This keeps decisions free of I/O, so tests drive the state machines with scripts of events and
// times (testdata/*.execution.txt).
type machine struct {
	now     time.Time
	at      time.Time       // the alarm: time of the next step without an event; zero for none
	actions []Action        // actions of this step
	tickets response.Ticket // the last issued ticket; tickets are unique within a machine
	wallOf  func(now time.Time) time.Time
}

// beginStep begins a step at the given time and without actions.
func (m *machine) beginStep(now time.Time) { m.now, m.actions = now, nil }

// addAction adds an action to the result of this step.
func (m *machine) addAction(action Action) { m.actions = append(m.actions, action) }

// nextTicket returns the ticket of a new request. It never returns 0, which means no request in
// flight.
func (m *machine) nextTicket() response.Ticket {
	m.tickets++
	return m.tickets
}

// wake sets the alarm, unless it is set to an earlier time.
func (m *machine) wake(at time.Time) { m.at = pacing.Sooner(m.at, at) }

// wall returns the time of the step on the clock used for API timestamps.
func (m *machine) wall() time.Time {
	if m.wallOf == nil {
		return m.now
	}
	return m.wallOf(m.now)
}
