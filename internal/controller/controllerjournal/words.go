// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllerjournal

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// words holds the types of a core's events. Their indexes are part of the format, so new types are
// appended.
type words[E any] struct {
	types  []reflect.Type
	places map[reflect.Type]int
}

// wordsOf returns the types of these examples, in their order. There can be at most 256, because an
// index is one byte.
func wordsOf[E any](examples ...E) words[E] {
	w := words[E]{places: map[reflect.Type]int{}}
	for i, example := range examples {
		t := reflect.TypeOf(example)
		w.types, w.places[t] = append(w.types, t), i
	}
	return w
}

var (
	// The order is part of the format; see words.
	ofEviction = wordsOf[eviction.Event](
		eviction.Tick{}, eviction.PodSeen{}, eviction.PodGone{}, eviction.PodsListing{}, eviction.PodsListed{},
		eviction.NodeSeen{}, eviction.NodeGone{}, eviction.NodesListing{}, eviction.NodesListed{}, eviction.Answered{},
		eviction.ClaimSeen{}, eviction.ClaimGone{}, eviction.SliceSeen{}, eviction.SliceGone{}, eviction.RuleSeen{}, eviction.RuleGone{},
		eviction.Listing{}, eviction.Listed{},
	)
	ofNodeHealth = wordsOf[nodehealth.Event](
		nodehealth.Tick{}, nodehealth.NodeSeen{}, nodehealth.NodeGone{}, nodehealth.NodesListing{}, nodehealth.NodesListed{},
		nodehealth.LeaseSeen{}, nodehealth.LeaseGone{}, nodehealth.LeasesListed{}, nodehealth.Blind{},
		nodehealth.Sighted{}, nodehealth.Answered{},
		nodehealth.Away{}, nodehealth.Polled{},
	)
)

// appendEvent appends an event to b: the index of its type, and its content in JSON. The content of
// an event without fields is omitted.
func (w words[E]) appendEvent(b []byte, e E) ([]byte, error) {
	t := reflect.TypeOf(e)
	place, ok := w.places[t]
	if !ok {
		return nil, fmt.Errorf("%T cannot be encoded", e)
	}
	b = append(b, byte(place))
	if t.NumField() == 0 {
		return records.AppendText(b, ""), nil
	}
	return records.AppendJSON(b, e)
}

// readEvent reads an event written by appendEvent. A failure is in d.Err, and the event is then
// nil. An unknown index stems from a newer build.
func (w words[E]) readEvent(d *records.Decoder) (e E) {
	place, err := d.ReadByte()
	if err != nil {
		return e
	}
	if int(place) >= len(w.types) {
		d.Err = fmt.Errorf("unknown type of event %d", place)
		return e
	}
	read := reflect.New(w.types[place])
	d.ReadJSON(read.Interface())
	return read.Elem().Interface().(E)
}

// formatActions returns actions in their journal form, one per line: the type's name and the
// content in JSON. Replays compare this text, so it must be deterministic.
func formatActions[A any](actions []A) string {
	return records.JoinActions(actions, func(action A) string {
		said, err := json.Marshal(action)
		if err != nil {
			said = []byte(err.Error())
		}
		return reflect.TypeOf(action).Name() + " " + string(said)
	})
}
