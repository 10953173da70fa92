package journal

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// known is the state of the cluster that the events so far add up to: enough to bring a new core to
// the same state.
type known struct {
	kinds   []cycle.Kind
	led     bool
	wall    cycle.WallSet
	objects map[cycle.Kind]map[cluster.Name]string // as they were written
	shown   map[cycle.Kind]map[cluster.Name]bool   // by the list under way
}

func newKnown() *known {
	return &known{objects: map[cycle.Kind]map[cluster.Name]string{}, shown: map[cycle.Kind]map[cluster.Name]bool{}}
}

// noteEvent applies an event. written is the event as the journal has it.
func (k *known) noteEvent(e cycle.Event, written []byte) {
	switch e := e.(type) {
	case cycle.Follows:
		for _, kind := range e.Kinds { // in addition to those before, which may be told again
			if !slices.Contains(k.kinds, kind) {
				k.kinds = append(k.kinds, kind)
			}
		}
	case cycle.Led:
		k.led = true
	case cycle.WallSet:
		k.wall = e
	case cycle.Listing:
		k.shown[e.Kind] = map[cluster.Name]bool{}
	case cycle.Listed:
		maps.DeleteFunc(k.objects[e.Kind], func(n cluster.Name, _ string) bool { return !k.shown[e.Kind][n] })
		delete(k.shown, e.Kind)
	case cycle.Seen:
		name := cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}
		if k.objects[e.Kind] == nil {
			k.objects[e.Kind] = map[cluster.Name]string{}
		}
		k.objects[e.Kind][name] = string(written)
		if k.shown[e.Kind] != nil {
			k.shown[e.Kind][name] = true
		}
	case cycle.Gone:
		delete(k.objects[e.Kind], cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()})
	}
}

// size is about how many bytes the events of listEvents have.
func (k *known) size() (n int) {
	for _, objects := range k.objects {
		for _, written := range objects {
			n += len(written)
		}
	}
	return n
}

// listEvents returns events that bring another core to the same state, in an order of its own.
func (k *known) listEvents() ([]cycle.Event, error) {
	events := []cycle.Event{cycle.Follows{Kinds: k.kinds}, k.wall}
	for _, kind := range k.kinds {
		objects, err := k.tellOf(kind)
		if err != nil {
			return nil, err
		}
		events = append(append(append(events, cycle.Listing{Kind: kind}), objects...), cycle.Listed{Kind: kind})
	}
	for _, kind := range slices.Sorted(maps.Keys(k.objects)) { // decisions do not wait for these
		if slices.Contains(k.kinds, kind) {
			continue
		}
		objects, err := k.tellOf(kind)
		if err != nil {
			return nil, err
		}
		events = append(events, objects...)
	}
	if k.led {
		events = append(events, cycle.Led{})
	}
	return events, nil
}

// tellOf returns events that show the objects of a kind, sorted by name.
func (k *known) tellOf(kind cycle.Kind) (events []cycle.Event, err error) {
	names := slices.SortedFunc(maps.Keys(k.objects[kind]), func(a, b cluster.Name) int {
		if by := strings.Compare(a.Namespace, b.Namespace); by != 0 {
			return by
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, name := range names {
		d := decoder{records.NewDecoder([]byte(k.objects[kind][name]))}
		e := d.readEvent()
		if d.Err != nil {
			return nil, d.Err
		}
		events = append(events, e)
	}
	return events, nil
}
