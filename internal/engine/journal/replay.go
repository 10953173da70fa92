package journal

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Result is the outcome of a replay.
type Result struct {
	records.Result
	Bound int `json:"bound"`
}

// Options are what a replay needs.
type Options struct {
	// Profiles makes the profiles of a configuration from the journal.
	Profiles func(h Header, configuration []byte) ([]cycle.Profile, error)
	// Each, if set, is called after every record, with the core as it is then.
	Each func(n int, r Record, core *cycle.Core)
	// On: the replay continues after the first difference.
	On bool
}

// Core makes a core like the one that the journal was recorded from.
func Core(h Header, profiles []cycle.Profile) (*cycle.Core, error) {
	return cycle.New(CoreOptions(h, profiles))
}

// CoreOptions are those of the core that the journal was recorded from.
func CoreOptions(h Header, profiles []cycle.Profile) cycle.Options {
	return cycle.Options{
		Profiles: profiles, Seed: h.Seed, FirstBackoff: h.FirstBackoff, LastBackoff: h.LastBackoff, MaxWait: h.MaxWait, Shadow: h.Shadow,
		Groups: h.Groups, SearchLimit: h.SearchLimit, Disabled: h.Disabled, PrepareAside: h.PrepareAside,
	}
}

// Replay feeds a journal to a new core and compares the actions. A panic of the core, as by a
// journal that no scheduler wrote, is an error.
func Replay(r *Reader, o Options) (result Result, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("event %d: the core panics: %v", result.Events, fault)
		}
	}()

	profiles, err := o.Profiles(r.Header, []byte(r.Header.Configuration))
	if err != nil {
		return Result{}, fmt.Errorf("configuration of the journal: %w", err)
	}

	core, err := Core(r.Header, profiles)
	if err != nil {
		return Result{}, err
	}

	for n := 0; ; n++ {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			result.Cut = r.Cut
			return result, nil
		}
		if err != nil {
			return result, err
		}
		if e, ok := record.Event.(cycle.Configured); ok {
			if e.Profiles, err = o.Profiles(r.Header, e.Source); err != nil {
				return result, fmt.Errorf("configuration of event %d: %w", n, err)
			}
			record.Event = e
		}
		actions := core.Step(record.At, record.Event)
		result.countRecord(&record, actions, r.Header.Began)
		if said := Text(actions); said != record.Actions && result.Parting == nil {
			result.Parting = &records.Parting{Event: n, At: record.At, Recorded: record.Actions, Replayed: said}
			if !o.On {
				return result, nil
			}
		}
		if o.Each != nil {
			o.Each(n, record, core)
		}
	}
}

func (r *Result) countRecord(record *Record, actions []cycle.Action, began time.Time) {
	r.Events++
	r.Actions += len(actions)
	r.Lasted = record.At.Sub(began)
	for _, action := range actions {
		if _, ok := action.(cycle.Announce); ok {
			r.Bound++
		}
	}
}
