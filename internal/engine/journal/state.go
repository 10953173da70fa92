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
)

// State reads the events that bring another core to the state at one moment, in an order of its
// own. They are decoded on another goroutine, a little ahead of who reads them. It is for the
// goroutine that steps the core, which must not wait: Next returns at once.
type State struct {
	decoded <-chan batch
	batch   batch
	next    int // the first event of batch that was not read
}

// batch is some events, or why there are no more.
type batch struct {
	events []cycle.Event
	err    error
}

const (
	// batchSize is about how many bytes of objects a batch has, and batchEvents how many events at
	// most. batchesAhead are decoded before they are asked for.
	batchSize    = 1 << 20
	batchEvents  = 1000
	batchesAhead = 4
)

// ErrEnded is the error of a state of a journal that has ended.
var ErrEnded = errors.New("the journal has ended")

// Next returns the next event; ready is false while it is not decoded yet. After the last event it
// returns nil.
func (s *State) Next() (e cycle.Event, ready bool, err error) {
	// A batch may be empty: one that carries an error only.
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
	// So that what was read can be freed while the rest of the batch waits.
	s.batch.events[s.next] = nil
	s.next++
	return e, true, nil
}

// moment is what is known at one moment. It is a snapshot: events that are added later do not
// change it.
type moment struct {
	follows cycle.Follows
	wall    cycle.WallSet
	led     bool
	kinds   []ofKind
}

// ofKind are the objects of a kind.
type ofKind struct {
	kind     cycle.Kind
	followed bool // decisions wait for it
	listing  bool // a list is under way
	objects  []stored
}

// stored is an object as it was written.
type stored struct {
	name  cluster.Name
	text  string
	shown bool // by the list under way
}

// copyMoment returns what is known now. It copies no objects, only references to their texts: the
// goroutine that encodes is not to be held up.
func (k *known) copyMoment() *moment {
	m := &moment{follows: cycle.Follows{Kinds: slices.Clone(k.kinds)}, wall: k.wall, led: k.led}
	kinds := m.follows.Kinds
	for _, kind := range slices.Sorted(maps.Keys(k.objects)) { // decisions do not wait for these
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

// decodeState sends the events of a moment, until the context or the journal ends. It always closes
// out. A context that ends leaves the state incomplete, which nobody reads any more.
func decodeState(ctx context.Context, at <-chan *moment, ended <-chan struct{}, out chan<- batch) {
	defer close(out)
	s := sender{ctx: ctx, ended: ended, out: out}
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
// that the next core is the same in each replay. Each kind that decisions wait for comes as a list.
func (s *sender) sendMoment(m *moment) {
	s.send(m.follows, 0)
	s.send(m.wall, 0)
	for _, of := range m.kinds {
		// By name, since the map of objects has no order.
		slices.SortFunc(of.objects, func(a, b stored) int {
			return cmp.Or(strings.Compare(a.name.Namespace, b.name.Namespace), strings.Compare(a.name.Name, b.name.Name))
		})
		if of.followed {
			s.send(cycle.Listing{Kind: of.kind}, 0)
		}
		s.sendObjects(of.objects)
		// A kind that decisions do not wait for has not been listed; its objects are only shown.
		if of.followed {
			s.send(cycle.Listed{Kind: of.kind}, 0)
		}
		if of.listing { // what this list shows from now on follows
			s.send(cycle.Listing{Kind: of.kind}, 0)
			s.sendObjects(slices.DeleteFunc(of.objects, func(o stored) bool { return !o.shown }))
		}
	}
	if m.led {
		s.send(cycle.Led{}, 0)
	}
}

// sendObjects decodes objects and sends them. What cannot be decoded is an error: the next core
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

// send adds an event to the batch, whose size is counted in bytes of the journal.
func (s *sender) send(e cycle.Event, size int) {
	s.batch.events = append(s.batch.events, e)
	if s.size += size; s.size >= batchSize || len(s.batch.events) >= batchEvents {
		s.flush()
	}
}

// fail sends what there is, with the error.
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
