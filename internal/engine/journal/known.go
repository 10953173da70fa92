// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

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
		if k.objects[e.Kind] == nil {
			k.objects[e.Kind] = map[cluster.Name]string{}
		}
		k.objects[e.Kind][name] = string(written)
		// A list is in progress.
		if k.shown[e.Kind] != nil {
			k.shown[e.Kind][name] = true
		}
	case cycle.Gone:
		delete(k.objects[e.Kind], cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()})
	}
}
