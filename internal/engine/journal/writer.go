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

// Writer writes a journal: a sequence of files, each of which can be replayed alone. Add, Due and
// Turn belong to the goroutine that steps the core. The files are written on the Writer's own
// goroutine.
type Writer struct {
	records *records.Writer[record]
	file    *file // belongs to the Writer's goroutine, except for due
	strips  bool  // see Strips
}

// record is an event with its actions, or, if turned is set, the request for a new file.
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

// file is the file being written, and the state that the next one has to begin with.
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

// Create starts a journal in a folder, which it creates if necessary. It removes the oldest files
// of the folder if they are too old or too large together.
func Create(dir string, h Header, l records.Limits) (*Writer, error) {
	j := &file{dir: dir, header: h, limits: l}
	if !h.Outside {
		j.known = newKnown()
	}
	if err := j.openFile(); err != nil {
		return nil, err
	}
	return &Writer{records: records.Start(j), file: j, strips: j.known != nil}, nil
}

// openFile starts a file.
func (j *file) openFile() error {
	f, err := records.Create(j.dir, magic, j.header, j.header.Began, j.limits)
	if err == nil {
		j.now, j.last = f, j.header.Began
	}
	return err
}

// Add records an event and its actions. After the journal has ended it does nothing.
func (w *Writer) Add(at time.Time, e cycle.Event, actions []cycle.Action) {
	w.records.Add(record{at: at, event: e, actions: Text(actions)})
}

// Strips reports whether the core must be shown stripped objects, because it may have to be rebuilt
// from the journal.
func (w *Writer) Strips() bool { return w.strips }

// Due reports whether the file is large or old enough to continue in a new one.
func (w *Writer) Due() bool { return w.file.due.Load() }

// Turn starts a new file, for a core that is rebuilt with this seed. It returns the events that
// bring that core to the current state; the caller has to Add them.
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

// Text returns actions in the form that journals hold.
func Text(actions []cycle.Action) string {
	return records.JoinActions(actions, func(a cycle.Action) string { return strings.ReplaceAll(a.String(), "\n", `\n`) })
}

// Err returns why the journal has ended, or nil.
func (w *Writer) Err() error { return w.records.Err() }

// Close writes what is queued. What is added afterwards may be lost.
func (w *Writer) Close(ctx context.Context) error { return w.records.Close(ctx) }

// Take writes a record, or continues in a new file.
func (j *file) Take(r record) error {
	if r.turned == nil {
		return j.addRecord(r)
	}
	events, err := j.turnFile(r.at, r.seed)
	j.due.Store(false)
	r.turned <- turned{events, err}
	return err
}

func (j *file) addRecord(r record) error {
	payload := binary.AppendVarint(j.buffer[:0], r.at.Sub(j.last).Nanoseconds())
	begin := len(payload)
	payload, err := encodeEvent(payload, r.event)
	if err != nil {
		return err
	}
	if j.known != nil {
		j.known.noteEvent(r.event, payload[begin:])
	}
	if e, ok := r.event.(cycle.Configured); ok && len(e.Source) > 0 {
		j.header.Configuration = string(e.Source)
	}
	j.buffer = records.AppendText(payload, r.actions)
	j.last = r.at
	return j.now.Write(j.buffer)
}

// Flush writes what is buffered, which bounds what a kill loses.
func (j *file) Flush() error {
	j.due.Store(j.known != nil && j.now.Due(j.last))
	return j.now.Flush()
}

// turnFile continues in a new file.
func (j *file) turnFile(at time.Time, seed uint64) ([]cycle.Event, error) {
	events, err := j.known.listEvents()
	if err != nil {
		return nil, err
	}
	if err := j.now.Close(); err != nil {
		return nil, err
	}
	j.header.Continues, j.header.Began, j.header.Seed = j.header.Began, at, seed
	return events, j.openFile()
}

// Close ends the file, and the journal.
func (j *file) Close() error {
	j.due.Store(false)
	return j.now.Close()
}
