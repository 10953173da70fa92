// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/owned"
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
func ProfilesOf(h journal.Header, text []byte) ([]cycle.Profile, error) {
	c, err := h.Added.Parse("journal", text)
	if err != nil {
		return nil, err
	}
	return answer.Mapped(c.Profiles, func(p *plugins.Profile) cycle.Profile { return cycle.Profile{Profile: p} }), nil
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

// File is a journal.
type File struct {
	Path        string
	Controllers bool // written by the controllers, not the scheduler
	Gap
}

// Gap describes the missing part of a journal before one of its files.
type Gap struct {
	// Missing is the preceding file, if it is missing although older files exist.
	Missing string `json:"missing,omitempty"`
	// Lost is the number of records lost before this file because the disk was too slow.
	Lost int `json:"lost,omitempty"`

	ends time.Time
}

func (g Gap) isEmpty() bool { return g.Missing == "" && g.Lost == 0 }

func (g Gap) String() string {
	if g.Missing != "" {
		return g.Missing + " is missing"
	}
	return answer.Count(g.Lost, "event") + " were lost, since the disk did not keep up"
}

// print describes the missing part before a file.
func (g Gap) print(page *answer.Page, path string) {
	if !g.isEmpty() {
		page.Warning("before %s, %s: that is not replayed", filepath.Base(path), g)
	}
}

// PrintGap prints the gap before a file into a story.
func (f *File) PrintGap(out io.Writer) {
	if !f.isEmpty() {
		records.WriteLine(out, f.ends, f.String()+": events before this point are not known")
	}
}

// Find returns the files named by the arguments, and the files of named folders, the oldest first.
// Each controller writes its journal into a subfolder.
func Find(args []string) (files []File, err error) {
	for _, arg := range args {
		paths, err := journalsAt(arg)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			controllers, err := records.Begins(path, controllerjournal.Magic)
			if err != nil {
				return nil, err
			}
			files = append(files, File{Path: path, Controllers: controllers})
		}
	}
	findGaps(files)
	return files, nil
}

func journalsAt(arg string) (files []string, err error) {
	info, err := os.Stat(arg)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{arg}, nil
	}

	for _, dir := range []string{arg, filepath.Join(arg, controllerjournal.Eviction), filepath.Join(arg, controllerjournal.NodeHealth)} {
		of, err := records.Files(dir)
		if err != nil {
			return nil, err
		}
		files = append(files, of...)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no journal there; berth scheduler --journal %s writes one", arg, arg)
	}
	return files, nil
}

// findGaps records the gap before each file, as described by the file's header. The oldest file of
// a folder has no gap, since old files are removed first. An unreadable file has no gap: playing it
// reports the reason.
func findGaps(files []File) {
	there := sets.New(answer.Mapped(files, func(f File) string { return filepath.Clean(f.Path) })...)
	older := map[string]bool{}
	for i := range files {
		f, dir := &files[i], filepath.Dir(files[i].Path)
		isFirst := !older[dir]
		older[dir] = true
		file, err := f.open()
		if err != nil {
			continue
		}
		file.Close()
		f.Gap = Gap{Lost: file.lost, ends: file.began}
		if name := records.Name(file.continues); !file.continues.IsZero() && !isFirst && !there.Has(filepath.Join(dir, name)) {
			f.Missing = name
		}
	}
}

// opened is an open file, read by one of two readers.
type opened struct {
	*os.File
	began, continues time.Time
	lost             int
	scheduler        *journal.Reader
	controllers      *controllerjournal.Reader
}

func (f *File) open() (file *opened, err error) {
	file = &opened{}
	if file.File, err = owned.Open(f.Path); err != nil {
		return nil, err
	}
	if f.Controllers {
		file.controllers, err = controllerjournal.NewReader(file)
	} else {
		file.scheduler, err = journal.NewReader(file)
	}

	switch {
	case err != nil:
		file.Close()
		return nil, err
	case f.Controllers:
		file.began, file.continues, file.lost = file.controllers.Header.Began, file.controllers.Header.Continues, file.controllers.Header.Lost
	default:
		file.began, file.continues, file.lost = file.scheduler.Header.Began, file.scheduler.Header.Continues, file.scheduler.Header.Lost
	}
	return file, nil
}
