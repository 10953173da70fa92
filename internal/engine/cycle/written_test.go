// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// written is the journal of a world as files. The zero value writes none.
type written struct {
	on     bool
	all    []string
	writer *journal.Writer
	began  time.Time // start of the file
	files  int
	next   bool // added events belong to the next file
}

// begin begins the journal of a new core.
func (j *written) begin(w *world) {
	if !j.on {
		return
	}
	j.end()
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		panic(err)
	}
	j.all = append(j.all, dir)
	j.began, j.files = w.now, j.files+1
	j.writer, err = journal.Create(dir, journal.Header{Began: w.now, Seed: w.options.Seed, Groups: w.options.Groups}, records.Limits{Size: 1 << 30}, nil)
	if err != nil {
		panic(err)
	}
}

func (j *written) end() {
	if j.writer == nil {
		return
	}
	if err := j.writer.Close(context.Background()); err != nil {
		panic(err)
	}
	j.writer = nil
}

func (j *written) add(at time.Time, e Event, actions []Action) {
	switch {
	case j.writer == nil:
	case j.next:
		j.writer.AddNext(at, e, actions)
	default:
		j.writer.Add(at, e, actions)
	}
}

// renew continues with another core and in another file, if the core is calm.
func (w *world) renew() {
	j := &w.written
	if j.writer == nil || !w.core.Calm() || w.now.Sub(j.began) < time.Second {
		return
	}
	seed := w.rng.Uint64()
	state := j.writer.Prepare(context.Background(), w.now, seed)
	o := w.options
	o.Seed, o.Profiles = seed, w.profiles()
	core, err := New(o)
	if err != nil {
		panic(err)
	}
	w.reserves = reservesOf(o.Profiles)
	saved, reserved := w.core.Save(), w.core.View().Reserved
	core.Succeed(w.core)
	w.core, w.options, w.journal = core, o, nil
	j.began, j.files = w.now, j.files+1
	j.next = true
	for {
		e, ready, err := state.Next()
		if err != nil {
			panic(err)
		}
		if e != nil {
			w.tell(e)
		} else if ready {
			break
		}
		runtime.Gosched()
	}
	j.next = false
	j.writer.Turn()
	w.tell(saved)
	if !slices.Equal(w.core.View().Reserved, reserved) {
		w.breaks("the next core does not know of the reservation %+v", reserved)
	}
}

// replayed plays every file, each to a separate core, and removes them.
func (w *world) replayed() error {
	w.written.end()
	defer func() {
		for _, dir := range w.written.all {
			_ = os.RemoveAll(dir)
		}
	}()
	played := 0
	for _, dir := range w.written.all {
		files, err := records.Files(dir)
		if err != nil {
			return err
		}
		for _, name := range files {
			if err := w.play(name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			played++
		}
	}
	if played != w.written.files {
		return fmt.Errorf("%d files were written, %d are there", w.written.files, played)
	}
	return nil
}

func (w *world) play(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := journal.NewReader(f)
	if err != nil {
		return err
	}
	result, err := journal.Replay(r, journal.Options{Profiles: func(journal.Header, []byte) ([]Profile, error) { return w.profiles(), nil }})
	if err == nil && result.Parting != nil {
		err = fmt.Errorf("parts at %+v", *result.Parting)
	}
	return err
}
