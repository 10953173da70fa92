package journal

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// Result is what a replay found.
type Result struct {
	Events  int           `json:"events"`
	Actions int           `json:"actions"`
	Bound   int           `json:"bound"`
	Lasted  time.Duration `json:"lasted"` // of the journal's own time
	Cut     bool          `json:"cut,omitempty"`
	// Parting is where the core said something else; nil if it nowhere did.
	Parting *Parting `json:"parting,omitempty"`
}

// Parting is the first event from which other actions follow than were recorded.
type Parting struct {
	Event    int       `json:"event"` // its number, from 0
	At       time.Time `json:"at"`
	Recorded string    `json:"recorded"`
	Replayed string    `json:"replayed"`
}

// Options are what a replay needs.
type Options struct {
	// Profiles are made from a configuration that the journal has.
	Profiles func(h Header, configuration []byte) ([]cycle.Profile, error)
	// Each, if set, is shown every record, with the core after it.
	Each func(n int, r Record, core *cycle.Core)
	// On: also behind a parting.
	On bool
}

// Core makes the core that the journal was written of.
func Core(h Header, profiles []cycle.Profile) (*cycle.Core, error) {
	return cycle.New(cycle.Options{
		Profiles: profiles, Seed: h.Seed, FirstBackoff: h.FirstBackoff, LastBackoff: h.LastBackoff, MaxWait: h.MaxWait, Shadow: h.Shadow,
		Groups: h.Groups,
	})
}

// Replay plays a journal to a new core and compares what it says.
func Replay(r *Reader, o Options) (Result, error) {
	profiles, err := o.Profiles(r.Header, []byte(r.Header.Configuration))
	if err != nil {
		return Result{}, fmt.Errorf("configuration of the journal: %w", err)
	}
	core, err := Core(r.Header, profiles)
	if err != nil {
		return Result{}, err
	}
	var result Result
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
		result.count(&record, actions, r.Header.Began)
		if said := Text(actions); said != record.Actions && result.Parting == nil {
			result.Parting = &Parting{n, record.At, record.Actions, said}
			if !o.On {
				return result, nil
			}
		}
		if o.Each != nil {
			o.Each(n, record, core)
		}
	}
}

func (r *Result) count(record *Record, actions []cycle.Action, began time.Time) {
	r.Events++
	r.Actions += len(actions)
	r.Lasted = record.At.Sub(began)
	for _, action := range actions {
		if _, ok := action.(cycle.Announce); ok {
			r.Bound++
		}
	}
}
