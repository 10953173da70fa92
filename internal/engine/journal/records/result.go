// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Result is the outcome of a replay. Events counts up to the first difference if the replay stopped
// there.
type Result struct {
	Events  int           `json:"events"`
	Actions int           `json:"actions"`
	Lasted  time.Duration `json:"lasted"` // in the journal's own time
	Cut     bool          `json:"cut,omitempty"`
	// Parting is the first difference, or nil.
	Parting *Parting `json:"parting,omitempty"`
}

// Parting is the first event whose replayed actions differ from the recorded actions. It may be the
// cause of all later differences.
type Parting struct {
	Event    int       `json:"event"` // its number, from 0
	At       time.Time `json:"at"`
	Recorded string    `json:"recorded"`
	Replayed string    `json:"replayed"`
}

// Replayed is a replayed event, with its recorded and its replayed actions.
type Replayed struct {
	At              time.Time
	Recorded, Again string
	Actions         int
}

// Replay replays records one after the other until the file ends. Unless toEnd is set, it also ends
// at the first difference. replay reads and replays the n-th record, and returns io.EOF after the
// last record. told, if set, is called after each record. A panic of the core, for example caused
// by a journal not written by a core, is returned as an error.
func (r *Reader) Replay(began time.Time, toEnd bool, replay func(n int) (Replayed, error), told func(n int)) (result Result, err error) {
	// A journal of unknown origin must not crash the process that replays it.
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("event %d: the core panics: %v", result.Events, fault)
		}
	}()

	for n := 0; ; n++ {
		event, err := replay(n)
		if errors.Is(err, io.EOF) {
			result.Cut = r.Cut
			return result, nil
		}
		if err != nil {
			return result, err
		}

		result.Events++
		result.Actions += event.Actions
		result.Lasted = event.At.Sub(began)
		if event.Again != event.Recorded && result.Parting == nil {
			result.Parting = &Parting{Event: n, At: event.At, Recorded: event.Recorded, Replayed: event.Again}
			if !toEnd {
				return result, nil
			}
		}
		if told != nil {
			told(n)
		}
	}
}

// WriteLine writes a line of a journal's story. The time is printed to the millisecond, in its own
// time zone.
func WriteLine(out io.Writer, at time.Time, text string) {
	fmt.Fprintf(out, "%s  %s\n", at.Format("2006-01-02T15:04:05.000Z07:00"), text)
}
