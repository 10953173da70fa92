package execute

import "time"

// machine is what the state machines of this package have in common: each is stepped with a time
// and an event, and answers with actions. The time stands still during a step, so that all that a
// step does happens at one moment; the alarm is what has it stepped again although nothing happens.
//
// That keeps decisions free of I/O, so tests drive them with a script of events and times
// (testdata/*.execution.txt).
type machine struct {
	now     time.Time
	at      time.Time // the alarm: when to look again, at the latest; zero: only at an event
	actions []Action  // of this step
	tickets Ticket    // the last one given out; no two requests of a machine share one
	wallOf  func(now time.Time) time.Time
}

// beginStep begins a step: its time, and no actions yet.
func (m *machine) beginStep(now time.Time) { m.now, m.actions = now, nil }

// do adds an action to the answer of this step.
func (m *machine) do(action Action) { m.actions = append(m.actions, action) }

// nextTicket returns the ticket of a new request. 0 is never one, and means that no request is in
// flight.
func (m *machine) nextTicket() Ticket {
	m.tickets++
	return m.tickets
}

// wake sets the alarm, unless it is set to an earlier time.
func (m *machine) wake(at time.Time) {
	if m.at.IsZero() || at.Before(m.at) {
		m.at = at
	}
}

// wall is the time of the step on the clock that API objects are stamped with.
func (m *machine) wall() time.Time {
	if m.wallOf == nil {
		return m.now
	}
	return m.wallOf(m.now)
}
