// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Writer writes a journal: a sequence of files, each replayable independently. Except for Strips
// and Close, its methods belong to the goroutine that steps the core. Except for Close, they never
// wait for the disk. Records are encoded on one goroutine and written on another.
type Writer struct {
	records *records.Writer[record]
	spool   *records.Spool
	strips  bool // see Strips
}

// record is an event with its actions, or, if change is set, an operation on the next file. Events
// and operations use the same channel to the encoder, so that they stay in order.
type record struct {
	at      time.Time
	event   cycle.Event
	actions string
	next    bool // the event is for the next file

	change change
	seed   uint64         // seed of the core of the next file
	state  chan<- *moment // receives the state for the beginning of the next file
}

// change is an operation on the next file.
type change byte

const (
	prepared  change = iota + 1 // the next file begins in memory, while the current file is still written
	turned                      // the next file replaces the current one
	discarded                   // the next file is dropped
)

// file encodes records for the current file, and holds the state with which the next file must
// begin. It belongs to the encoding goroutine. There is always one file being written, and at most
// one in preparation.
type file struct {
	*records.Spool
	header Header
	create creator
	known  *known // state after all events, including lost records; nil: no file can follow this one
	next   *next  // file in preparation, or nil

	last   time.Time // time of the last record
	buffer []byte
}

// next is the encoded part of the file in preparation.
type next struct {
	begin   Header    // header to be written, as of Prepare
	header  Header    // header with later changes
	last    time.Time // time of the last record
	records []piece
	size    int
}

// piece is an encoded record.
type piece struct {
	at   time.Time
	text []byte
}

// creator creates the file with a header.
type creator func(h Header) (*records.File, error)

// Create starts a journal in a directory, which it creates if necessary. It removes the oldest
// files of the directory if they are too old, or if all files together are too large. tell, if set,
// is called on other goroutines when records are lost, and with the reason if the journal ends
// before Close. Create returns after it has created the file and written the header, so an
// unwritable directory is detected immediately.
func Create(dir string, h Header, l records.Limits, tell func(error)) (*Writer, error) {
	return start(h, tell, func(h Header) (*records.File, error) { return records.Create(dir, magic, h, h.Began, l) })
}

// start is like Create, but makes the files with create. Tests call it directly.
func start(h Header, tell func(error), create creator) (*Writer, error) {
	first, err := create(h)
	if err != nil {
		return nil, err
	}
	j := &file{Spool: records.NewSpool(first, h.Outside, tell), header: h, create: create, last: h.Began}
	// The state of plugins cannot be transferred to a new core, so no file can follow the first.
	if !h.Outside {
		j.known = newKnown()
	}
	return &Writer{records: records.Start(j, tell), spool: j.Spool, strips: j.known != nil}, nil
}

// Add records an event and its actions. After the journal has ended it does nothing. The objects of
// the event must not be changed afterwards: they are encoded later.
func (w *Writer) Add(at time.Time, e cycle.Event, actions []cycle.Action) {
	w.records.Add(record{at: at, event: e, actions: Text(actions)})
}

// OnLost makes count be called on other goroutines for each record not written because the disk
// does not keep up, or because the journal has ended.
func (w *Writer) OnLost(count func()) {
	w.spool.OnLost(count)
	w.records.OnLost(count)
}

// Strips reports whether the core must get stripped objects, because a new core may be built from
// the journal. It is constant for the life of the Writer.
func (w *Writer) Strips() bool { return w.strips }

// Due reports whether to continue in a new file: the current file is large or old enough, or ended
// early because the disk did not keep up.
func (w *Writer) Due() bool { return w.spool.Due() }

// Prepare begins the next file in memory, for a core made with this seed. It returns a reader of
// the events that bring that core to the state of all events added so far; the reader stops when
// the context ends. The caller gives the core these events and all later ones, and passes each to
// AddNext. Prepare is followed by Turn or Discard.
//
// The next file cannot simply continue where this one ends: it must begin with the whole state of
// the cluster. Bringing a core to that state takes long in a large cluster, so the current core
// continues meanwhile:
//
//	Prepare        the next core gets the state, in pieces between decisions
//	Add, AddNext   the current core decides; both cores get new events
//	Turn           the next core takes over, and its file replaces the current one
func (w *Writer) Prepare(ctx context.Context, at time.Time, seed uint64) *State {
	state, decoded := make(chan *moment, 1), make(chan batch, batchesAhead)
	w.records.Add(record{at: at, change: prepared, seed: seed, state: state})
	go decodeState(ctx, state, w.records.Done(), decoded)
	return &State{decoded: decoded}
}

// AddNext records an event and the actions of the core of the next file.
func (w *Writer) AddNext(at time.Time, e cycle.Event, actions []cycle.Action) {
	w.records.Add(record{at: at, event: e, actions: Text(actions), next: true})
}

// Turn continues in the next file: records added from now on follow those of AddNext. Both cores
// must have been given the same events by then.
func (w *Writer) Turn() {
	w.spool.Await()
	w.records.Add(record{change: turned})
}

// Discard drops the next file.
func (w *Writer) Discard() { w.records.Add(record{change: discarded}) }

// Text returns actions in the form held by journals. Line breaks within an action are written as
// \n, so that one line is one action.
func Text(actions []cycle.Action) string {
	return records.JoinActions(actions, func(a cycle.Action) string { return strings.ReplaceAll(a.String(), "\n", `\n`) })
}

// Err returns the reason why the journal has ended, or nil.
func (w *Writer) Err() error { return w.records.Err() }

// Close writes the queued records. Records added afterwards may be lost. If the disk takes longer
// than the context, Close returns the context's error.
func (w *Writer) Close(ctx context.Context) error { return w.records.Close(ctx) }

// Take encodes a record, or carries out its operation on the next file. It is called for one record
// at a time, in the order of their addition.
func (j *file) Take(r record) error {
	switch r.change {
	case prepared:
		h := j.header
		// The header has the configuration in effect now, which may differ from the beginning of
		// this file.
		h.Continues, h.Began, h.Seed = h.Began, r.at, r.seed
		j.next = &next{begin: h, header: h, last: r.at}
		r.state <- j.known.copyMoment()
		return nil
	case turned:
		return j.turnFile()
	case discarded:
		j.next = nil
		return nil
	}

	if r.next {
		text, err := j.encodeRecord(r, &j.next.header, &j.next.last, nil)
		// The record is kept in memory until Turn or Discard.
		j.next.records = append(j.next.records, piece{r.at, text})
		j.next.size += len(text) + records.PieceCost
		return err
	}
	text, err := j.encodeRecord(r, &j.header, &j.last, j.known)
	if err != nil {
		return err
	}
	return j.Add(r.at, text)
}

// encodeRecord encodes an event and its actions, and applies the event to the header and, unless it
// is nil, to known. Times are written as the difference to the previous record, in nanoseconds. The
// result is a copy, since the spool keeps it.
func (j *file) encodeRecord(r record, h *Header, last *time.Time, known *known) ([]byte, error) {
	payload := binary.AppendVarint(j.buffer[:0], r.at.Sub(*last).Nanoseconds())
	begin := len(payload)
	payload, err := encodeEvent(payload, r.event)
	if err != nil {
		return nil, err
	}
	if known != nil {
		known.noteEvent(r.event, payload[begin:])
	}
	if e, ok := r.event.(cycle.Configured); ok && len(e.Source) > 0 {
		h.Configuration = string(e.Source)
	}
	j.buffer = records.AppendText(payload, r.actions)
	*last = r.at
	return slices.Clone(j.buffer), nil
}

// turnFile continues in the next file. known is kept, since the next core was given the same state
// and events.
func (j *file) turnFile() error {
	next := j.next
	// The header is written as of Prepare, because the records contain the later changes.
	begin := next.begin
	j.header, j.last, j.next = next.header, next.last, nil
	// The state at the beginning of a file may be larger than the limit of bytes waiting for the
	// disk.
	j.Turn(next.size, func(lost int) (*records.File, error) {
		begin.Lost = lost
		return j.create(begin)
	})
	for _, p := range next.records {
		if err := j.Add(p.at, p.text); err != nil {
			return err
		}
	}
	return nil
}
