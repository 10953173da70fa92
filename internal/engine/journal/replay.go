// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/reconstruct"
)

// Result is the outcome of a replay.
type Result struct {
	records.Result
	Bound int `json:"bound"`
}

// Options configures a replay. Profiles must be set. Profiles is called for the header, and again
// for each Configured event.
type Options struct {
	// Profiles creates the profiles of a configuration from the journal.
	Profiles func(h Header, configuration []byte) ([]cycle.Profile, error)
	// Each, if set, is called after every record, with the core in its state at that time.
	Each func(n int, r Record, core *cycle.Core)
	// Continue continues the replay after the first difference.
	Continue bool
}

// Core creates a core like the recorded one. Its clock, its randomness and its options are taken
// from the journal, so that it may run on any machine.
func Core(h Header, profiles []cycle.Profile) (*cycle.Core, error) {
	return cycle.New(CoreOptions(h, profiles))
}

// CoreOptions returns the options of the recorded core. Observers, and everything else that does
// not influence decisions, have their zero value.
func CoreOptions(h Header, profiles []cycle.Profile) cycle.Options {
	o := cycle.Options{
		Profiles: profiles, Seed: h.Seed, FirstBackoff: h.FirstBackoff, LastBackoff: h.LastBackoff, MaxWait: h.MaxWait,
		Groups: h.Groups, SearchLimit: h.SearchLimit, Disabled: h.Disabled, PrepareAside: h.PrepareAside,
		ResizePreemption: h.ResizePreemption,
	}
	if h.Shadow {
		o.Shadow = reconstruct.New
	}
	return o
}

// Replay feeds a journal to a new core and compares the actions. A panic of the core, for example
// caused by a journal not written by a scheduler, is returned as an error.
//
// The replay of another build's journal may differ, starting with the first decision that this
// build makes differently on purpose. The results of out-of-tree plugins and extenders are not
// recorded, so a difference proves nothing if Header.Outside is set.
func Replay(r *Reader, o Options) (result Result, err error) {
	profiles, err := o.Profiles(r.Header, []byte(r.Header.Configuration))
	if err != nil {
		return Result{}, fmt.Errorf("configuration of the journal: %w", err)
	}

	core, err := Core(r.Header, profiles)
	if err != nil {
		return Result{}, err
	}

	var record Record
	step := func(n int) (records.Replayed, error) {
		if record, err = r.Next(); err != nil {
			return records.Replayed{}, err
		}
		// The journal contains the configuration file as of the event. The profiles are created
		// from it.
		if e, ok := record.Event.(cycle.Configured); ok {
			if e.Profiles, err = o.Profiles(r.Header, e.Source); err != nil {
				return records.Replayed{}, fmt.Errorf("configuration of event %d: %w", n, err)
			}
			record.Event = e
		}
		// The recorded time is the core's only clock.
		actions := core.Step(record.At, record.Event)
		for _, action := range actions {
			if _, ok := action.(cycle.RecordBinding); ok {
				result.Bound++
			}
		}
		return records.Replayed{At: record.At, Recorded: record.Actions, Again: Text(actions), Actions: len(actions)}, nil
	}

	told := func(n int) {
		if o.Each != nil {
			o.Each(n, record, core)
		}
	}
	result.Result, err = r.Reader.Replay(r.Header.Began, o.Continue, step, told)
	return result, err
}
