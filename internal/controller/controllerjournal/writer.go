// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllerjournal

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Writer writes the journal of a core: a sequence of files that can be replayed independently. E
// and A are the types of the core's events and actions. Add is called on the goroutine that steps
// the core, and never waits for the disk.
type Writer[E, A any] struct {
	// Save returns the core's state, for the next file.
	Save func() any

	records *records.Writer[record[E]]
	spool   *records.Spool
}

// OfEviction and OfNodeHealth are writers for the two cores.
type (
	OfEviction   = Writer[eviction.Event, eviction.Action]
	OfNodeHealth = Writer[nodehealth.Event, nodehealth.Action]
)

// record is an event with its actions or, if knowledge is set, a request for a new file.
type record[E any] struct {
	at, wall  time.Time
	event     E
	actions   string
	knowledge any
}

// file encodes records for the file being written. It is used only by the encoding goroutine. The
// goroutine that steps the core only queues records, and a third goroutine writes to disk.
type file[E any] struct {
	*records.Spool
	header Header
	create creator
	words  words[E]

	at     time.Time     // time of the last record
	skew   time.Duration // lead of the wall clock at the last record
	buffer []byte
}

// creator creates the file with a header.
type creator func(h Header) (*records.File, error)

// ForEviction begins a journal of taint eviction. tell, if set, is called on other goroutines when
// records are lost, and with the reason if the journal ends before Close.
func ForEviction(dir, build string, o eviction.Options, l records.Limits, tell func(error)) (*OfEviction, error) {
	return start[eviction.Event, eviction.Action](Header{Component: Eviction, Build: build}, o, ofEviction, tell, createIn(dir, l))
}

// ForNodeHealth begins a journal of node health. tell has the same meaning as in [ForEviction].
func ForNodeHealth(dir, build string, o nodehealth.Options, l records.Limits, tell func(error)) (*OfNodeHealth, error) {
	return start[nodehealth.Event, nodehealth.Action](Header{Component: NodeHealth, Build: build}, o, ofNodeHealth, tell, createIn(dir, l))
}

// createIn creates files in the folder, and deletes old ones according to the limits.
func createIn(dir string, l records.Limits) creator {
	return func(h Header) (*records.File, error) { return records.Create(dir, Magic, h, h.Began, l) }
}

// start begins a journal with its first file, without a state because the core is new.
func start[E, A any](h Header, options any, w words[E], tell func(error), create creator) (*Writer[E, A], error) {
	var err error
	if h.Options, err = json.Marshal(options); err != nil {
		return nil, err
	}
	h.Began = time.Now().Round(0).UTC()
	first, err := create(h)
	if err != nil {
		return nil, err
	}
	j := &file[E]{Spool: records.NewSpool(first, false, tell), header: h, create: create, words: w, at: h.Began}
	return &Writer[E, A]{records: records.Start(j, tell), spool: j.Spool}, nil
}

// Add records an event and its actions, at a time of the core's clock and of the wall clock. After
// the journal has ended it does nothing. The actions are encoded before Add returns, so the caller
// may change them; the event must not change any more.
func (w *Writer[E, A]) Add(at, wall time.Time, e E, actions []A) {
	w.records.Add(record[E]{at: at, wall: wall, event: e, actions: formatActions(actions)})
	// The file is full, or is missing records, so the journal continues in a new file. This must
	// happen between two steps, when the core's state matches the last record.
	if w.spool.TakeDue() {
		w.Turn(at)
	}
}

// OnLost sets count to be called, on other goroutines, for each record not written because the disk
// does not keep up, or because the journal has ended.
func (w *Writer[E, A]) OnLost(count func()) {
	w.spool.OnLost(count)
	w.records.OnLost(count)
}

// Turn continues the journal in a new file, which begins with the core's current state. It must be
// called between two steps of the core. Copying the state takes time with many pods.
func (w *Writer[E, A]) Turn(at time.Time) {
	w.records.Add(record[E]{at: at, knowledge: w.Save()})
}

// Close writes the queued records. Add must not be called afterwards.
func (w *Writer[E, A]) Close(ctx context.Context) error { return w.records.Close(ctx) }

// Take encodes a record, or continues in a new file.
func (j *file[E]) Take(r record[E]) error {
	if r.knowledge != nil {
		return j.turnFile(r)
	}
	// Both clocks are recorded as differences to the previous record, which take a few bytes.
	skew := r.wall.Sub(r.at)
	b := binary.AppendVarint(j.buffer[:0], int64(r.at.Sub(j.at)))
	b = binary.AppendVarint(b, int64(skew-j.skew))
	b, err := j.words.appendEvent(b, r.event)
	if err != nil {
		return err
	}
	j.buffer = records.AppendText(b, r.actions)
	j.at, j.skew = r.at, skew
	return j.Add(r.at, slices.Clone(j.buffer))
}

// turnFile continues in a new file, which begins with the core's state.
func (j *file[E]) turnFile(r record[E]) error {
	knowledge, err := json.Marshal(r.knowledge)
	if err != nil {
		return err
	}
	j.header.Continues, j.header.Began, j.header.Knowledge = j.header.Began, r.at, len(knowledge)
	// The first record of the new file is relative to its header.
	j.at, j.skew = r.at, 0
	h := j.header
	j.Turn(0, func(lost int) (*records.File, error) {
		h.Lost = lost
		return j.openFile(h, knowledge)
	})
	return nil
}

// openFile starts a file for a core with this state. It runs on the writing goroutine.
func (j *file[E]) openFile(h Header, knowledge []byte) (*records.File, error) {
	f, err := j.create(h)
	if err != nil {
		return nil, err
	}
	for part := range slices.Chunk(knowledge, piece) {
		if err := f.Write(part); err != nil {
			return f, err
		}
	}
	return f, f.Flush()
}
