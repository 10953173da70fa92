package journal

import (
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// known is the state of the cluster that the events so far add up to: enough to bring a new core to
// the same state. It is kept by the goroutine that encodes, beside the file: when the next file
// begins, it starts with these objects, so that each file can be replayed alone and old ones can be
// removed.
type known struct {
	kinds   []cycle.Kind
	led     bool
	wall    cycle.WallSet
	objects map[cycle.Kind]map[cluster.Name]string // as they were written
	shown   map[cycle.Kind]map[cluster.Name]bool   // by the list under way
}

// newKnown knows of nothing.
func newKnown() *known {
	return &known{objects: map[cycle.Kind]map[cluster.Name]string{}, shown: map[cycle.Kind]map[cluster.Name]bool{}}
}

// noteEvent applies an event. written is the event as the journal has it, which is also how an
// object is kept: nothing has to be encoded twice, and objects in memory are not held.
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
	// A list that was begun and not ended is begun again for the next core; see moment.
	case cycle.Listing:
		k.shown[e.Kind] = map[cluster.Name]bool{}
	case cycle.Listed:
		// As the core does: what a full list does not show is gone.
		maps.DeleteFunc(k.objects[e.Kind], func(n cluster.Name, _ string) bool { return !k.shown[e.Kind][n] })
		delete(k.shown, e.Kind)
	case cycle.Seen:
		name := cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}
		if k.objects[e.Kind] == nil {
			k.objects[e.Kind] = map[cluster.Name]string{}
		}
		k.objects[e.Kind][name] = string(written)
		// Only while a list is under way.
		if k.shown[e.Kind] != nil {
			k.shown[e.Kind][name] = true
		}
	case cycle.Gone:
		delete(k.objects[e.Kind], cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()})
	}
}
