// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllerjournal

import (
	"encoding/json"
	"io"
	"time"

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
