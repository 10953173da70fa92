// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"io"
	"time"

	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// Reader reads a journal, one record after the other. It is for one goroutine.
type Reader struct {
	*records.Reader
	Header Header
	last   time.Time // time of the last record; each record contains the time since the previous one
}

// NewReader reads the header. It returns records.ErrOther if the file is not a journal of this
// version.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{}
	var err error
	if r.Reader, err = records.NewReader(from, magic, &r.Header); err != nil {
		return nil, err
	}
	r.last = r.Header.Began
	return r, nil
}

// Next returns the next record, or io.EOF at the end. The objects of the event are new, and belong
// to the caller.
func (r *Reader) Next() (Record, error) {
	payload, err := r.Reader.Next()
	if err != nil {
		return Record{}, err
	}
	d := decoder{records.NewDecoder(payload)}
	r.last = r.last.Add(time.Duration(d.ReadVarint()))
	record := Record{At: r.last, Event: d.readEvent()}
	record.Actions = d.ReadText()
	if d.Err != nil {
		return Record{}, r.Wrong(d.Err)
	}
	return record, nil
}
