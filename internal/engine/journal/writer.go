package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Writer writes a journal: a sequence of files, each of which can be replayed alone. Add, Due and
// Turn belong to the goroutine that steps the core, and never wait for the disk. Records are
// encoded on one goroutine and written on another.
type Writer struct {
	records *records.Writer[record]
	spool   *records.Spool
	strips  bool // see Strips
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

// file encodes records for the file being written, and has the state that the next one has to begin
// with. It belongs to the goroutine that encodes.
type file struct {
	*records.Spool
	header Header
	create creator
	known  *known // of all events, also of those whose records are lost; nil: this is the last file

	last   time.Time // of the last record
	buffer []byte
}

// creator creates the file with a header.
type creator func(h Header) (*records.File, error)

// Create starts a journal in a folder, which it creates if necessary. It removes the oldest files
// of the folder if they are too old or too large together. tell, if set, is told on other
// goroutines when records are lost, and why the journal ends before Close.
func Create(dir string, h Header, l records.Limits, tell func(error)) (*Writer, error) {
	return start(h, tell, func(h Header) (*records.File, error) { return records.Create(dir, magic, h, h.Began, l) })
}

func start(h Header, tell func(error), create creator) (*Writer, error) {
	first, err := create(h)
	if err != nil {
		return nil, err
	}
	j := &file{Spool: records.NewSpool(first, h.Outside, tell), header: h, create: create, last: h.Began}
	if !h.Outside {
		j.known = newKnown()
	}
	return &Writer{records: records.Start(j, tell), spool: j.Spool, strips: j.known != nil}, nil
}

// Add records an event and its actions. After the journal has ended it does nothing.
func (w *Writer) Add(at time.Time, e cycle.Event, actions []cycle.Action) {
	w.records.Add(record{at: at, event: e, actions: Text(actions)})
}

// Strips reports whether the core must be shown stripped objects, because it may have to be rebuilt
// from the journal.
func (w *Writer) Strips() bool { return w.strips }

// Due reports whether to continue in a new file: this one is large or old enough, or has ended
// since the disk did not keep up.
func (w *Writer) Due() bool { return w.spool.Due() }

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

// Take encodes a record, or continues in a new file.
func (j *file) Take(r record) error {
	if r.turned == nil {
		return j.addRecord(r)
	}
	events, err := j.known.listEvents()
	if err == nil {
		j.turnFile(r.at, r.seed)
	}
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
	return j.Add(r.at, slices.Clone(j.buffer))
}

// turnFile continues in a new file.
func (j *file) turnFile(at time.Time, seed uint64) {
	j.header.Continues, j.header.Began, j.header.Seed, j.last = j.header.Began, at, seed, at
	h := j.header
	j.Turn(j.known.size(), func(lost int) (*records.File, error) {
		h.Lost = lost
		return j.create(h)
	})
}
