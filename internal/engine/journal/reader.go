package journal

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"
)

// Reader reads a journal.
type Reader struct {
	Header Header
	in     *bufio.Reader
	last   time.Time
	read   int64 // bytes so far
	// Cut: the journal ends in the middle of a record, as a kill leaves it.
	Cut bool
}

// NewReader reads the header.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{in: bufio.NewReaderSize(from, 1<<18)}
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(r.in, begin); err != nil || string(begin) != magic {
		return nil, errors.New("not a journal of this version of Berth")
	}
	payload, err := r.frame()
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if err := json.Unmarshal(payload, &r.Header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	r.last = r.Header.Began
	return r, nil
}

// Next returns the next record; io.EOF at the end.
func (r *Reader) Next() (Record, error) {
	payload, err := r.frame()
	if err != nil {
		return Record{}, err
	}
	after, size := binary.Varint(payload)
	if size <= 0 {
		return Record{}, errShort
	}
	d := decoder{rest: payload[size:]}
	r.last = r.last.Add(time.Duration(after))
	record := Record{At: r.last, Event: d.event()}
	record.Actions = d.text()
	if d.err != nil {
		return Record{}, fmt.Errorf("record at byte %d: %w", r.read, d.err)
	}
	return record, nil
}

// frame reads a record's payload. One that is cut off ends the journal.
func (r *Reader) frame() ([]byte, error) {
	size, err := binary.ReadUvarint(r.in)
	if err != nil {
		return nil, io.EOF
	}
	if size > longest {
		return nil, fmt.Errorf("record at byte %d is said to have %d bytes", r.read, size)
	}
	frame := make([]byte, 4+size)
	if _, err := io.ReadFull(r.in, frame); err != nil {
		r.Cut = true
		return nil, io.EOF
	}
	if crc32.Checksum(frame[4:], table) != binary.LittleEndian.Uint32(frame) {
		return nil, fmt.Errorf("record at byte %d: its checksum does not agree", r.read)
	}
	r.read += int64(len(frame))
	return frame[4:], nil
}
