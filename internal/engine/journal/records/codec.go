// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
)

// AppendText appends a text, preceded by its length. [Decoder.ReadText] reads it.
func AppendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// AppendJSON appends a value as a text.
func AppendJSON(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return AppendText(b, text), err
}

// JoinActions returns the actions resulting from an event in the form held by journals: one per
// line. Replays compare that text. print must escape line breaks within an action.
func JoinActions[A any](actions []A, print func(A) string) string {
	if len(actions) == 0 {
		return ""
	}
	lines := make([]string, len(actions))
	for i, action := range actions {
		lines[i] = print(action)
	}
	return strings.Join(lines, "\n")
}

// Decoder reads the parts of a record. After the first error it returns zero values, and keeps that
// error. So a caller can read everything and check Err once.
type Decoder struct {
	Err  error
	rest []byte
}

var errShort = errors.New("it is shorter than declared")

// NewDecoder returns a decoder of a record.
func NewDecoder(record []byte) Decoder { return Decoder{rest: record} }

// ReadByte reads a byte. Its error is also kept.
func (d *Decoder) ReadByte() (byte, error) {
	if len(d.rest) == 0 {
		d.fail(errShort)
		return 0, d.Err
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b, nil
}

// ReadUvarint reads the format of binary.AppendUvarint.
func (d *Decoder) ReadUvarint() uint64 { return readNumber(d, binary.Uvarint) }

// ReadVarint reads the format of binary.AppendVarint.
func (d *Decoder) ReadVarint() int64 { return readNumber(d, binary.Varint) }

// readNumber reads a number of variable length.
func readNumber[N int64 | uint64](d *Decoder, read func([]byte) (N, int)) N {
	n, size := read(d.rest)
	if size <= 0 {
		d.fail(errShort)
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

// ReadText reads the format of [AppendText].
func (d *Decoder) ReadText() string {
	n := d.ReadUvarint()
	if n > uint64(len(d.rest)) {
		d.fail(errShort)
		return ""
	}
	text := string(d.rest[:n])
	d.rest = d.rest[n:]
	return text
}

// ReadJSON reads a text into a value. An empty text leaves the value unchanged.
func (d *Decoder) ReadJSON(into any) {
	if text := d.ReadText(); text != "" && d.Err == nil {
		d.Err = json.Unmarshal([]byte(text), into)
	}
}

// fail keeps the first error, and ends the reading.
func (d *Decoder) fail(err error) {
	if d.Err == nil {
		d.Err = err
	}
	d.rest = nil
}
