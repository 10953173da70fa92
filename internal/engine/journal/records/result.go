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
	// Parting is the first difference; nil without any.
	Parting *Parting `json:"parting,omitempty"`
}

// Parting is the first event with other actions than recorded. It is the place to look at: later
// differences may be caused by it.
type Parting struct {
	Event    int       `json:"event"` // its number, from 0
	At       time.Time `json:"at"`
	Recorded string    `json:"recorded"`
	Replayed string    `json:"replayed"`
}

// Replayed is a replayed event, with its recorded actions and its present ones.
type Replayed struct {
	At              time.Time
	Recorded, Again string
	Actions         int
}

// Replay replays records one after the other until the file ends, or, unless on is set, until the
// first difference. replay reads and replays the n-th, and returns io.EOF after the last. told, if
// set, is called after each. A panic of the core, for example by a journal not written by a core,
// is an error.
func (r *Reader) Replay(began time.Time, on bool, replay func(n int) (Replayed, error), told func(n int)) (result Result, err error) {
	// A journal from elsewhere must not end the process replaying it.
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
			if !on {
				return result, nil
			}
		}
		if told != nil {
			told(n)
		}
	}
}
