// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/berth-k8s/berth/internal/owned"
)

// ErrOther is the error of a file that does not begin like a journal.
var ErrOther = errors.New("not a journal of this version of Berth")

// Reader reads a file, possibly while the file is still being written. In that case, reading ends
// after the last complete record, and Cut is set if a partial record follows.
type Reader struct {
	input *bufio.Reader
	read  int64 // number of bytes of checksums and records read so far
	// Cut means that the file ends in the middle of a record, for example after a kill.
	Cut bool
}

// NewReader reads the first line of a file, and its header. The header is decoded from JSON into
// header. Unknown fields are ignored, so that older builds can read newer files as long as magic is
// the same.
func NewReader(from io.Reader, magic string, header any) (*Reader, error) {
	r := &Reader{input: bufio.NewReaderSize(from, 1<<18)}
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(r.input, begin); err != nil || string(begin) != magic {
		return nil, ErrOther
	}
	record, err := r.Next()
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if err := json.Unmarshal(record, header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	return r, nil
}

// Next returns the next record, or io.EOF at the end. A record that is cut off also ends the file.
func (r *Reader) Next() ([]byte, error) {
	size, err := binary.ReadUvarint(r.input)
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	// The length itself is cut off.
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, r.cut()
	// 4 is the size of the checksum.
	case err == nil && size > math.MaxInt64-4:
		err = fmt.Errorf("its declared length is %d bytes", size)
	}
	if err != nil {
		return nil, r.Wrong(err)
	}
	// A record may be as long as a scheduler's state of all pending pods. Memory is allocated for
	// the bytes read, and not for a length merely claimed by the file.
	var read bytes.Buffer
	read.Grow(int(min(4+size, 1<<16)))
	if _, err := io.CopyN(&read, r.input, int64(4+size)); errors.Is(err, io.EOF) {
		return nil, r.cut()
	} else if err != nil {
		return nil, err
	}
	frame := read.Bytes()
	if crc32.Checksum(frame[4:], table) != binary.LittleEndian.Uint32(frame) {
		return nil, r.Wrong(errors.New("its checksum does not match"))
	}
	r.read += int64(len(frame))
	return frame[4:], nil
}

// cut records that the file ends here, in the middle of a record.
func (r *Reader) cut() error {
	r.Cut = true
	return io.EOF
}

// Wrong adds the approximate position of a record to an error about it.
func (r *Reader) Wrong(err error) error { return fmt.Errorf("record at byte %d: %w", r.read, err) }

// Begins reports whether a file begins with magic.
func Begins(name, magic string) (bool, error) {
	f, err := owned.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	begin := make([]byte, len(magic))
	_, err = io.ReadFull(f, begin)
	return err == nil && string(begin) == magic, nil
}
