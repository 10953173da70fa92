// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Player plays recorded journals, one after the other.
type Player struct {
	// Story receives the history of the pod or the node; nil if no history is wanted.
	Story io.Writer
	Pod   types.NamespacedName
	Node  string
	// KeepGoing makes the player continue after the first event with a different outcome.
	KeepGoing bool
	// Words receives the progress, unless there is a story.
	Words func(string)

	ofControllers *controllerjournal.Story // one story for all files
}

// Played is the result for one journal.
type Played struct {
	File string `json:"file"`
	// Component is the writer of the journal; "" is the scheduler.
	Component string `json:"component,omitempty"`
	Gap
	journal.Result
	Lasted simulate.Seconds `json:"lasted"` // as in Result
	Took   simulate.Seconds `json:"took"`
}

// Play plays a journal.
func (p *Player) Play(f *File) (one Played, err error) {
	file, err := f.open()
	if err != nil {
		return one, err
	}
	defer file.Close()

	one = Played{File: f.Path, Gap: f.Gap}
	began := time.Now()
	if f.Controllers {
		one.Component = file.controllers.Header.Component
		one.Result.Result, err = controllerjournal.Replay(file.controllers, p.optionsOfControllers(f))
	} else {
		one.Result, err = journal.Replay(file.scheduler, p.options(f))
	}
	one.Lasted = simulate.Seconds(one.Result.Lasted.Round(time.Millisecond))
	one.Took = simulate.Seconds(time.Since(began).Round(time.Microsecond))
	return one, err
}

func (p *Player) options(f *File) journal.Options {
	o := journal.Options{Profiles: ProfilesOf, Continue: p.KeepGoing || p.Story != nil}
	if p.Story != nil {
		o.Each = (&journal.Story{Out: p.Story, Pod: p.Pod}).Narrate
	} else {
		o.Each = func(n int, record journal.Record, _ *cycle.Core) { p.progress(f, n, record.At) }
	}
	return o
}

func (p *Player) optionsOfControllers(f *File) controllerjournal.Options {
	if p.Story != nil && p.ofControllers == nil {
		p.ofControllers = &controllerjournal.Story{Out: p.Story, Pod: p.Pod, Node: p.Node}
	}
	o := controllerjournal.Options{Continue: p.KeepGoing || p.Story != nil, Story: p.ofControllers}
	if p.Story == nil {
		o.Each = func(n int, at time.Time) { p.progress(f, n, at) }
	}
	return o
}

func (p *Player) progress(f *File, n int, at time.Time) {
	if n%1000 == 0 {
		p.Words(fmt.Sprintf("replaying %s: %d events, at %s", filepath.Base(f.Path), n, at.Format(time.DateTime)))
	}
}

// ProfilesOf makes the profiles of a configuration in a journal.
func ProfilesOf(h journal.Header, text []byte) (profiles []cycle.Profile, err error) {
	c, err := h.Added.Parse("journal", text)
	if err != nil {
		return nil, err
	}
	for _, profile := range c.Profiles {
		profiles = append(profiles, cycle.Profile{Profile: profile})
	}
	return profiles, nil
}

// Results holds the results of several journals.
type Results []Played

// Write writes the results in the given format if it is one of answer.Formats, and as text
// otherwise.
func (all Results) Write(out io.Writer, format string) error {
	return answer.Write(out, format, all, func(page *answer.Page) {
		for i := range all {
			all[i].print(page)
		}
	})
}

func (r *Played) print(page *answer.Page) {
	speed, bound := "", ""
	lasted, took := r.Lasted.Duration(), r.Took.Duration()
	if took > 0 {
		speed = fmt.Sprintf(", %.0f times as fast as recorded", lasted.Seconds()/took.Seconds())
	}
	if r.Component == "" {
		bound = fmt.Sprintf(", %s bound", answer.Count(r.Bound, "pod"))
	}

	r.Gap.print(page, r.File)
	page.Line("%s: %s, %s%s in %v; replayed in %v%s", r.File, answer.Count(r.Events, "event"), answer.Count(r.Actions, "action"),
		bound, lasted.Round(time.Second), took.Round(time.Millisecond), speed)
	if r.Cut {
		page.Line("  its last record is incomplete, as after a kill")
	}
	p := r.Parting
	if p == nil {
		page.Line("  the same actions, byte for byte")
		return
	}
	page.Alarm("  diverges at event %d, %s", p.Event, p.At.Format(time.RFC3339Nano))
	page.Line("  recorded: %s", cmp.Or(p.Recorded, "nothing"))
	page.Line("  replayed: %s", cmp.Or(p.Replayed, "nothing"))
}
