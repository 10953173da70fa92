package journal

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Writer writes the journal of a core: a sequence of files, each of which can be replayed alone. E
// are the core's events, A its actions. Add belongs to the goroutine that steps the core.
type Writer[E, A any] struct {
	// Save returns the core's state, for the next file.
	Save func() any

	records *records.Writer[record[E]]
	file    *file[E] // owned by the writer's goroutine, except for due
}

// OfEviction and OfNodeHealth are writers for the two cores.
type (
	OfEviction   = Writer[eviction.Event, eviction.Action]
	OfNodeHealth = Writer[nodehealth.Event, nodehealth.Action]
)

// record is an event with its actions, or, with knowledge, the request for a new file.
type record[E any] struct {
	at, wall  time.Time
	event     E
	actions   string
	knowledge any
}

// file is the journal's file that is being written.
type file[E any] struct {
	dir    string
	header Header
	limits records.Limits
	words  words[E]

	now    *records.File
	at     time.Time     // of the last record
	skew   time.Duration // of the last record
	buffer []byte
	asked  bool        // due was set for the next file
	due    atomic.Bool // it is time for the next file, which Add is still to request
}

// ForEviction begins a journal of taint eviction.
func ForEviction(dir, build string, o eviction.Options, l records.Limits) (*OfEviction, error) {
	return createWriter[eviction.Event, eviction.Action](dir, Header{Component: Eviction, Build: build}, o, l, ofEviction)
}

// ForNodeHealth begins a journal of node health.
func ForNodeHealth(dir, build string, o nodehealth.Options, l records.Limits) (*OfNodeHealth, error) {
	return createWriter[nodehealth.Event, nodehealth.Action](dir, Header{Component: NodeHealth, Build: build}, o, l, ofNodeHealth)
}

func createWriter[E, A any](dir string, h Header, options any, l records.Limits, w words[E]) (*Writer[E, A], error) {
	var err error
	if h.Options, err = json.Marshal(options); err != nil {
		return nil, err
	}
	h.Began = time.Now().Round(0).UTC()
	j := &file[E]{dir: dir, header: h, limits: l, words: w}
	if err := j.openFile(nil); err != nil {
		return nil, err
	}
	return &Writer[E, A]{records: records.Start(j), file: j}, nil
}

// openFile starts a file for a core with this state.
func (j *file[E]) openFile(knowledge []byte) error {
	j.header.Knowledge = len(knowledge)
	f, err := records.Create(j.dir, Magic, j.header, j.header.Began, j.limits)
	if err != nil {
		return err
	}
	j.now, j.at, j.skew = f, j.header.Began, 0
	for len(knowledge) > 0 {
		n := min(piece, len(knowledge))
		if err := j.now.Write(knowledge[:n]); err != nil {
			return err
		}
		knowledge = knowledge[n:]
	}
	return j.now.Flush()
}

// Add records an event and its actions, at a time of the core's clock and of the wall clock. After
// the journal has ended it does nothing.
func (w *Writer[E, A]) Add(at, wall time.Time, e E, actions []A) {
	w.records.Add(record[E]{at: at, wall: wall, event: e, actions: formatActions(actions)})
	if w.file.due.CompareAndSwap(true, false) {
		w.Turn(at)
	}
}

// Turn continues in a new file, which begins with the core's current state.
func (w *Writer[E, A]) Turn(at time.Time) {
	w.records.Add(record[E]{at: at, knowledge: w.Save()})
}

// Close writes what is queued. Nothing may be added afterwards.
func (w *Writer[E, A]) Close(ctx context.Context) error { return w.records.Close(ctx) }

// Take writes a record, or continues in a new file.
func (j *file[E]) Take(r record[E]) error {
	if r.knowledge != nil {
		return j.turnFile(r)
	}
	skew := r.wall.Sub(r.at)
	b := binary.AppendVarint(j.buffer[:0], int64(r.at.Sub(j.at)))
	b = binary.AppendVarint(b, int64(skew-j.skew))
	b, err := j.words.appendEvent(b, r.event)
	if err != nil {
		return err
	}
	j.buffer = records.AppendText(b, r.actions)
	j.at, j.skew = r.at, skew
	return j.now.Write(j.buffer)
}

func (j *file[E]) turnFile(r record[E]) error {
	knowledge, err := json.Marshal(r.knowledge)
	if err != nil {
		return err
	}
	if err := j.now.Close(); err != nil {
		return err
	}
	j.header.Continues, j.header.Began, j.asked = j.header.Began, r.at, false
	return j.openFile(knowledge)
}

// Flush writes what is buffered, which bounds what a kill loses.
func (j *file[E]) Flush() error {
	if !j.asked && j.now.Due(j.at) {
		j.asked = true
		j.due.Store(true)
	}
	return j.now.Flush()
}

// Close ends the file, and the journal.
func (j *file[E]) Close() error { return j.now.Close() }
