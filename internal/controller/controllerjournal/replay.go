// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllerjournal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Options are the options of a replay. The zero Options compare up to the first difference, and
// print nothing.
type Options struct {
	// Story, if set, is printed during the replay.
	Story *Story
	// Each, if set, is called for every record.
	Each func(n int, at time.Time)
	// Continue makes the replay continue after the first difference.
	Continue bool
}

// player is a core in a replay. E and A are the types of its events and actions. A difference means
// that this build decides differently, or that the core had an input missing from the journal.
type player[E any, A fmt.Stringer] struct {
	words   words[E]
	step    func(now time.Time, event E) []A
	narrate func(at time.Time, event E, actions []A) // nil without a story
}

// Replay feeds a journal to a new core and compares the actions. It replays the core's clock: each
// event has its recorded time, regardless of the replay's speed. An unreadable file is an error; a
// difference is part of the result.
func Replay(r *Reader, o Options) (records.Result, error) {
	// wall is the wall clock of the replay. playFile sets it before each step, and the core reads
	// it through its options.
	var wall time.Time
	clock := func(time.Time) time.Time { return wall }
	switch r.Header.Component {
	case Eviction:
		var options eviction.Options
		var knows eviction.Knowledge
		if cut, err := r.beginReplay(&options, &knows); err != nil || cut {
			return records.Result{Cut: cut}, err
		}
		options.Wall = clock
		core := eviction.Restore(options, knows)
		o.Story.beginFile(r.Header, &knows)
		p := player[eviction.Event, eviction.Action]{words: ofEviction, step: core.Step}
		if o.Story != nil {
			p.narrate = o.Story.ofEviction(core)
		}
		return p.playFile(r, o, &wall)
	case NodeHealth:
		var options nodehealth.Options
		var knows nodehealth.Knowledge
		if cut, err := r.beginReplay(&options, &knows); err != nil || cut {
			return records.Result{Cut: cut}, err
		}
		options.Wall = clock
		o.Story.beginFile(r.Header, &eviction.Knowledge{})
		core, err := nodehealth.Restore(options, knows)
		if err != nil {
			return records.Result{}, err
		}
		p := player[nodehealth.Event, nodehealth.Action]{words: ofNodeHealth, step: core.Step}
		if o.Story != nil && o.Story.Node != "" { // node health has no data about pods
			p.narrate = o.Story.ofNodeHealth
		}
		return p.playFile(r, o, &wall)
	}
	return records.Result{}, fmt.Errorf("a journal of %q, which this build does not support", r.Header.Component)
}

// beginReplay reads the core's options and state. cut is set if the file ends before the end of the
// state.
func (r *Reader) beginReplay(options, knowledge any) (cut bool, err error) {
	if err := json.Unmarshal(r.Header.Options, options); err != nil {
		return false, fmt.Errorf("options of the core: %w", err)
	}
	text, err := r.readKnowledge()
	// A process killed while starting a file leaves an incomplete state. That does not count as a
	// fault of the file.
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil || len(text) == 0 {
		return false, err
	}
	if err := json.Unmarshal(text, knowledge); err != nil {
		return false, fmt.Errorf("state of the core: %w", err)
	}
	return false, nil
}

// playFile replays the records of one file, up to its end or to the point of truncation.
func (p *player[E, A]) playFile(r *Reader, o Options, wall *time.Time) (records.Result, error) {
	var event E
	var actions []A
	step := func(int) (records.Replayed, error) {
		d, err := r.nextRecord()
		if err != nil {
			return records.Replayed{}, err
		}
		event = p.words.readEvent(d)
		recorded := d.ReadText()
		if d.Err != nil {
			return records.Replayed{}, r.Wrong(d.Err)
		}
		// The wall clock is set before the step, because the core reads it during the step.
		*wall = r.at.Add(r.skew)
		actions = p.step(r.at, event)
		return records.Replayed{At: r.at, Recorded: recorded, Again: formatActions(actions), Actions: len(actions)}, nil
	}

	told := func(n int) {
		if p.narrate != nil {
			p.narrate(r.at, event, actions)
		}
		if o.Each != nil {
			o.Each(n, r.at)
		}
	}
	return r.Reader.Replay(r.Header.Began, o.Continue, step, told)
}
