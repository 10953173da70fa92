package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Writer writes a journal: one file after the other, each of which can be played alone. Add, Due
// and Turn belong to the goroutine that steps the core; the rest is done on one of the writer's
// own.
type Writer struct {
	records *records.Writer[record]
	file    *file // of the writer's goroutine, but for due
	strips  bool
}

// record is an event with what followed from it, or, with turned, the wish for a new file.
type record struct {
	at      time.Time
	event   cycle.Event
	actions string

	seed   uint64
	turned chan<- turned
}

type turned struct {
	events []cycle.Event
	err    error
}

// file is the journal's file that is being written, and what the next one needs to know.
type file struct {
	dir    string
	header Header
	limits records.Limits
	known  *known // nil: this is the last file

	now    *records.File
	last   time.Time // of the last record
	buffer []byte
	due    atomic.Bool // it is time for the next file
}

// Create begins a journal in a folder, which is made if it is not there. The oldest files of the
// folder are removed when they are too old or take too much.
func Create(dir string, h Header, l records.Limits) (*Writer, error) {
	j := &file{dir: dir, header: h, limits: l}
	if !h.Outside {
		j.known = newKnown()
	}
	if err := j.open(); err != nil {
		return nil, err
	}
	return &Writer{records: records.Start(j), file: j, strips: j.known != nil}, nil
}

// open begins a file.
func (j *file) open() error {
	f, err := records.Create(j.dir, magic, j.header, j.header.Began, j.limits)
	if err == nil {
		j.now, j.last = f, j.header.Began
	}
	return err
}

// Add notes an event and what followed from it. After the journal has ended it does nothing.
func (w *Writer) Add(at time.Time, e cycle.Event, actions []cycle.Action) {
	w.records.Add(record{at: at, event: e, actions: Text(actions)})
}

// Strips tells whether the core is to be shown objects as the journal has them: it may have to be
// made anew from them.
func (w *Writer) Strips() bool { return w.strips }

// Due tells whether the file is large or old enough for the journal to go on in another one.
func (w *Writer) Due() bool { return w.file.due.Load() }

// Turn begins a new file, for a core that is made anew with that seed. It returns the events that
// tell the core what is known; they are yet to be added.
func (w *Writer) Turn(at time.Time, seed uint64) ([]cycle.Event, error) {
	answer := make(chan turned, 1)
	w.records.Add(record{at: at, seed: seed, turned: answer})
	select {
	case t := <-answer:
		return t.events, t.err
	case <-w.records.Done():
		return nil, errors.New("the journal has ended")
	}
}

// Text is the actions as journals hold them.
func Text(actions []cycle.Action) string {
	if len(actions) == 0 {
		return ""
	}
	var b strings.Builder
	for i, action := range actions {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(strings.ReplaceAll(action.String(), "\n", `\n`))
	}
	return b.String()
}

// Err is why the journal has ended, if it has.
func (w *Writer) Err() error { return w.records.Err() }

// Close writes what waits. Nothing may be added afterwards.
func (w *Writer) Close(ctx context.Context) error { return w.records.Close(ctx) }

// Take writes a record, or goes on in a new file.
func (j *file) Take(r record) error {
	if r.turned == nil {
		return j.add(r)
	}
	events, err := j.turn(r.at, r.seed)
	j.due.Store(false)
	r.turned <- turned{events, err}
	return err
}

func (j *file) add(r record) error {
	payload := binary.AppendVarint(j.buffer[:0], r.at.Sub(j.last).Nanoseconds())
	begin := len(payload)
	payload, err := encode(payload, r.event)
	if err != nil {
		return err
	}
	if j.known != nil {
		j.known.note(r.event, payload[begin:])
	}
	if e, ok := r.event.(cycle.Configured); ok && len(e.Source) > 0 {
		j.header.Configuration = string(e.Source)
	}
	j.buffer = appendText(payload, r.actions)
	j.last = r.at
	return j.now.Write(j.buffer)
}

// Flush bounds what a kill loses.
func (j *file) Flush() error {
	j.due.Store(j.known != nil && j.now.Due(j.last))
	return j.now.Flush()
}

// turn goes on in a new file.
func (j *file) turn(at time.Time, seed uint64) ([]cycle.Event, error) {
	events, err := j.known.tell()
	if err != nil {
		return nil, err
	}
	if err := j.now.Close(); err != nil {
		return nil, err
	}
	j.header.Began, j.header.Seed = at, seed
	return events, j.open()
}

// Close ends the file, and the journal.
func (j *file) Close() error {
	j.due.Store(false)
	return j.now.Close()
}
