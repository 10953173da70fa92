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
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/owned"
)

const (
	// shares is the number of files into which the limits of a directory are divided: a file ends
	// at this share of the size or age. The oldest file is removed as a whole, so a removal loses
	// only one share.
	shares = 4
	// suffix is the suffix of the file names.
	suffix = ".journal"
	// fileBuffer bounds the bytes of a file buffered until the next flush.
	fileBuffer = 1 << 18
)

// Limits bounds the files of a directory. The limits apply to all files together; see shares.
type Limits struct {
	Size int64         // in bytes
	Age  time.Duration // 0: no limit
}

// ErrFull is the error of a file that has reached half of the size limit of its directory. Older
// files may take up the other half.
var ErrFull = errors.New("the journal has reached its size and ends")

// File is a file being written. It is used by one goroutine.
type File struct {
	began  time.Time
	limits Limits
	f      io.Closer
	out    *bufio.Writer
	size   int64
}

// Create starts a file in a directory, which it creates if necessary. It removes the oldest files
// of the directory if they are too old, or if all files together are too large. An existing file of
// the same millisecond is an error, since files are never overwritten.
func Create(dir, magic string, header any, began time.Time, l Limits) (*File, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	if err := makeRoom(dir, l, began); err != nil {
		return nil, err
	}
	// Journals reveal the workload of the cluster, so only the owner and its group may read them.
	f, err := os.OpenFile(filepath.Join(dir, Name(began)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return nil, err
	}
	w, err := Begin(f, magic, header, began, l)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// Begin starts a file that is written to out. The header is written immediately.
func Begin(out io.WriteCloser, magic string, header any, began time.Time, l Limits) (*File, error) {
	f := &File{began: began, limits: l, f: out, out: bufio.NewWriterSize(out, fileBuffer)}
	return f, f.begin(magic, header)
}

// begin writes the format's name and the header.
func (f *File) begin(magic string, header any) error {
	head, err := json.Marshal(header)
	if err != nil {
		return err
	}
	if _, err := f.out.WriteString(magic); err != nil {
		return err
	}
	if err := f.frame(head); err != nil {
		return err
	}
	return f.out.Flush()
}

// makeRoom removes the files that are too old, and the oldest files until the remaining ones use at
// most half of the size limit. The other half is left to the file about to begin.
func makeRoom(dir string, l Limits, now time.Time) error {
	names, err := Files(dir)
	if err != nil {
		return err
	}

	var size int64
	// Start with the newest file, so that the oldest files exceed the limit.
	for _, name := range slices.Backward(names) {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		size += info.Size()
		if size > l.Size/2 || l.Age > 0 && now.Sub(info.ModTime()) > l.Age {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}

	return nil
}

// Name returns the name of the file that began at a time. Names sort by time.
func Name(began time.Time) string { return began.UTC().Format("20060102T150405.000") + suffix }

// Files lists the files of a directory, the oldest first.
func Files(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	slices.Sort(names)
	return names, err
}

// Write adds a record. The record that exceeds the limit is still written, but Write returns
// ErrFull.
func (f *File) Write(record []byte) error {
	if err := f.frame(record); err != nil {
		return err
	}
	if f.size > f.limits.Size/2 {
		return ErrFull
	}
	return nil
}

// Due reports whether the file is large or old enough to continue in a new one.
func (f *File) Due(now time.Time) bool {
	return f.size > f.limits.Size/shares || f.limits.Age > 0 && now.Sub(f.began) > f.limits.Age/shares
}

// Flush writes the buffer to the operating system; unflushed records are lost if the process is
// killed. It does not sync to the disk.
func (f *File) Flush() error { return f.out.Flush() }

// Close ends the file.
func (f *File) Close() error { return errors.Join(f.out.Flush(), f.f.Close()) }

// table is for the checksums.
var table = crc32.MakeTable(crc32.Castagnoli)

// frame writes one record.
//
//	length (uvarint) | CRC-32C of the record (4 bytes, little endian) | record
func (f *File) frame(record []byte) error {
	var head [binary.MaxVarintLen64 + 4]byte
	size := binary.PutUvarint(head[:], uint64(len(record)))
	binary.LittleEndian.PutUint32(head[size:], crc32.Checksum(record, table))
	if _, err := f.out.Write(head[:size+4]); err != nil {
		return err
	}
	f.size += int64(size + 4 + len(record))
	_, err := f.out.Write(record)
	return err
}

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
