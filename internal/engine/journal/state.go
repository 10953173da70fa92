// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// State reads the events that bring another core to the state at one moment, in an order that does
// not depend on the history of that state. Another goroutine decodes them, a little ahead of the
// reader. State is used by the goroutine stepping the core, which must not wait, so Next returns
// immediately.
type State struct {
	decoded <-chan batch
	batch   batch
	next    int // index of the first unread event of batch
}

// batch holds some events. The last batch may also hold the error that ended the state.
type batch struct {
	events []cycle.Event
	err    error
}

const (
	// batchSize is the approximate number of bytes of objects in a batch, and batchEvents is the
	// maximum number of events. batchesAhead batches are decoded ahead.
	batchSize    = 1 << 20
	batchEvents  = 1000
	batchesAhead = 4
)

// ErrEnded is returned by [State.Next] if the journal ended before it produced the state.
var ErrEnded = errors.New("the journal has ended")

// Next returns the next event; ready is false while it is not decoded yet. After the last event it
// returns nil.
func (s *State) Next() (e cycle.Event, ready bool, err error) {
	// A batch may be empty if it carries only an error.
	for s.next == len(s.batch.events) {
		if s.decoded == nil {
			return nil, true, s.batch.err
		}
		select {
		case b, more := <-s.decoded:
			if s.batch, s.next = b, 0; !more || b.err != nil {
				s.decoded = nil
			}
		default:
			return nil, false, nil
		}
	}
	e = s.batch.events[s.next]
	// Drop the reference, so that the event can be freed before the rest of the batch is read.
	s.batch.events[s.next] = nil
	s.next++
	return e, true, nil
}

// moment is the known state at one moment. It is a snapshot, unaffected by later events.
type moment struct {
	follows cycle.Follows
	wall    cycle.WallSet
	led     bool
	kinds   []ofKind
}

// ofKind holds the objects of a kind.
type ofKind struct {
	kind     cycle.Kind
	followed bool // decisions wait for its list
	listing  bool // a list has begun and not ended
	objects  []stored
}

// stored is an object in its written form.
type stored struct {
	name  cluster.Name
	text  string
	shown bool // shown by the current list
}

// copyMoment returns the currently known state. It copies no objects, only references to their
// texts, so as not to delay the encoding goroutine.
func (k *known) copyMoment() *moment {
	m := &moment{follows: cycle.Follows{Kinds: slices.Clone(k.kinds)}, wall: k.wall, led: k.led}
	kinds := m.follows.Kinds
	for _, kind := range slices.Sorted(maps.Keys(k.objects)) { // kinds that are not in Follows
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}

	for i, kind := range kinds {
		shown, listing := k.shown[kind]
		of := ofKind{kind: kind, followed: i < len(m.follows.Kinds), listing: listing, objects: make([]stored, 0, len(k.objects[kind]))}
		for name, text := range k.objects[kind] {
			of.objects = append(of.objects, stored{name, text, shown[name]})
		}
		m.kinds = append(m.kinds, of)
	}
	return m
}

// decodeState sends the events of a moment, until the context or the journal ends. At the end, it
// always closes batches. If the context ends, the state is incomplete and must not be used.
func decodeState(ctx context.Context, at <-chan *moment, ended <-chan struct{}, batches chan<- batch) {
	defer close(batches)
	s := sender{ctx: ctx, ended: ended, out: batches}
	select {
	case m := <-at:
		s.sendMoment(m)
	case <-ctx.Done():
	case <-ended:
		s.fail(ErrEnded)
	}
	s.flush()
}

// sender collects events in batches, and sends them. After the first error it sends nothing more.
type sender struct {
	ctx     context.Context
	ended   <-chan struct{}
	out     chan<- batch
	batch   batch
	size    int
	stopped bool
}

// sendMoment sends the events of a moment in a fixed order, kind by kind and object by object, so
// that the next core is the same in each replay. Each kind awaited by decisions is sent as a list.
func (s *sender) sendMoment(m *moment) {
	s.send(m.follows, 0)
	s.send(m.wall, 0)
	for _, of := range m.kinds {
		// Sort by name, since maps are unordered.
		slices.SortFunc(of.objects, func(a, b stored) int {
			return cmp.Or(strings.Compare(a.name.Namespace, b.name.Namespace), strings.Compare(a.name.Name, b.name.Name))
		})
		if of.followed {
			s.send(cycle.Listing{Kind: of.kind}, 0)
		}
		s.sendObjects(of.objects)
		// Decisions do not wait for a kind outside Follows, so its objects are sent without Listing
		// and Listed.
		if of.followed {
			s.send(cycle.Listed{Kind: of.kind}, 0)
		}
		if of.listing { // objects shown by the current list follow
			s.send(cycle.Listing{Kind: of.kind}, 0)
			s.sendObjects(slices.DeleteFunc(of.objects, func(o stored) bool { return !o.shown }))
		}
	}
	if m.led {
		s.send(cycle.Led{}, 0)
	}
}

// sendObjects decodes objects and sends them. An undecodable object is an error: the next core
// would lack it.
func (s *sender) sendObjects(objects []stored) {
	for _, o := range objects {
		if s.stopped {
			return
		}
		d := decoder{records.NewDecoder([]byte(o.text))}
		e := d.readEvent()
		if d.Err != nil {
			s.fail(d.Err)
			return
		}
		s.send(e, len(o.text))
	}
}

// send adds an event to the batch, counting its size in bytes of the journal.
func (s *sender) send(e cycle.Event, size int) {
	s.batch.events = append(s.batch.events, e)
	if s.size += size; s.size >= batchSize || len(s.batch.events) >= batchEvents {
		s.flush()
	}
}

// fail sends the pending batch, with the error.
func (s *sender) fail(err error) {
	s.batch.err = err
	s.flush()
	s.stopped = true
}

// flush sends the batch, and waits until there is room for it.
func (s *sender) flush() {
	if !s.stopped && (len(s.batch.events) > 0 || s.batch.err != nil) {
		select {
		case s.out <- s.batch:
		case <-s.ctx.Done():
			s.stopped = true
		}
	}
	s.batch, s.size = batch{}, 0
}

// known is the state of the cluster after all events so far: it suffices to bring a new core to the
// same state. The encoding goroutine keeps it in addition to the file: the next file starts with
// these objects, so that each file can be replayed independently and old ones can be removed.
type known struct {
	kinds   []cycle.Kind
	led     bool
	wall    cycle.WallSet
	objects map[cycle.Kind]map[cluster.Name]string // in their written form
	shown   map[cycle.Kind]map[cluster.Name]bool   // objects shown by the current list
}

// newKnown returns an empty state.
func newKnown() *known {
	return &known{objects: map[cycle.Kind]map[cluster.Name]string{}, shown: map[cycle.Kind]map[cluster.Name]bool{}}
}

// noteEvent applies an event. written is the event in its journal form. Objects are kept in this
// form as well, so that they are not encoded twice and the objects in memory are not retained.
func (k *known) noteEvent(e cycle.Event, written []byte) {
	switch e := e.(type) {
	case cycle.Follows:
		for _, kind := range e.Kinds { // in addition to the kinds of earlier events; a kind may be repeated
			if !slices.Contains(k.kinds, kind) {
				k.kinds = append(k.kinds, kind)
			}
		}
	case cycle.Led:
		k.led = true
	case cycle.WallSet:
		k.wall = e
	// If the list has not ended when the state is copied, the next core gets its beginning again;
	// see sendMoment.
	case cycle.Listing:
		k.shown[e.Kind] = map[cluster.Name]bool{}
	case cycle.Listed:
		// Like the core, delete the objects missing from a full list.
		maps.DeleteFunc(k.objects[e.Kind], func(n cluster.Name, _ string) bool { return !k.shown[e.Kind][n] })
		delete(k.shown, e.Kind)
	case cycle.Seen:
		name := cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}
		rules.Inner(k.objects, e.Kind)[name] = string(written)
		// A list is in progress.
		if k.shown[e.Kind] != nil {
			k.shown[e.Kind][name] = true
		}
	case cycle.Gone:
		delete(k.objects[e.Kind], cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()})
	}
}
