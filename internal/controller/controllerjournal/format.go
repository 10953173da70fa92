// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllerjournal

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Magic begins every journal of the controllers. Its number grows when older builds cannot read the
// output of newer ones.
const Magic = "berth-controller-journal 1\n"

// Header holds the inputs with which the core was created. It is stored as JSON at the beginning of
// each file. Fields added later must be optional, since files of earlier builds lack them.
type Header struct {
	Component string    `json:"component"` // Eviction or NodeHealth
	Build     string    `json:"build"`     // version of Berth
	Began     time.Time `json:"began"`
	// Continues is the start time of the previous file, or zero for the first of a process.
	Continues time.Time `json:"continues,omitzero"`
	// Lost is the number of records missing before this file, because the disk did not keep up.
	Lost int `json:"lost,omitempty"`
	// Options holds the options of the core.
	Options json.RawMessage `json:"options"`
	// Knowledge is the size, in bytes of JSON, of the core's state at the beginning of the file,
	// stored in the records after the header; 0 means none.
	Knowledge int `json:"knowledge,omitempty"`
}

// The components, by their names in kube-controller-manager.
const (
	Eviction   = "taint-eviction-controller"
	NodeHealth = "node-lifecycle-controller"
)

// piece is the maximum size, in bytes, of the part of the state in one record: the state of a large
// cluster exceeds the size limit of a record.
const piece = 1 << 20

// Reader reads a journal: NewReader reads the header, readKnowledge reads the state, and nextRecord
// reads one event after the other.
//
// A record consists of the time since the previous record and the change of the wall clock's lead,
// both as varints in nanoseconds; the index of the event's type, in one byte; the event, in JSON;
// and the actions as text, one per line.
type Reader struct {
	*records.Reader
	Header Header

	at   time.Time     // time of the last record
	skew time.Duration // lead of the wall clock over the core's clock
}

// NewReader reads the header.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{}
	var err error
	if r.Reader, err = records.NewReader(from, Magic, &r.Header); err != nil {
		return nil, err
	}
	r.at = r.Header.Began
	return r, nil
}

// readKnowledge reads the core's state at the beginning of the file; io.EOF if it is cut off.
func (r *Reader) readKnowledge() ([]byte, error) {
	var all []byte
	for len(all) < r.Header.Knowledge {
		part, err := r.Reader.Next()
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	return all, nil
}

// nextRecord reads the next record up to its event; io.EOF at the end.
func (r *Reader) nextRecord() (*records.Decoder, error) {
	record, err := r.Reader.Next()
	if err != nil {
		return nil, err
	}
	d := records.NewDecoder(record)
	r.at, r.skew = r.at.Add(time.Duration(d.ReadVarint())), r.skew+time.Duration(d.ReadVarint())
	return &d, nil
}

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
