package logfile

import (
	"bytes"
	"io"
	"os"
)

const (
	// pieceSize is the length up to which a line is handled in one piece. Runtimes cut at 16 KiB
	// unless told otherwise.
	pieceSize = 64 << 10
	// block is how much is read at once when looking for the last lines.
	block = 16 << 10
)

// scanner reads complete lines of a growing file.
type scanner struct {
	file   *os.File
	offset int64  // in the file, of what is read next
	until  *int64 // where to stop; nil: nowhere
	buffer []byte
	have   []byte // of the buffer: read, but not returned yet
	inside bool   // of a line longer than the buffer, of which a part was returned
}

func newScanner(f *os.File) *scanner { return &scanner{file: f, buffer: make([]byte, pieceSize)} }

func (s *scanner) size() (int64, error) {
	info, err := s.file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// truncated starts over if the file was emptied, as some tools do in place of a rotation.
func (s *scanner) truncated() error {
	size, err := s.size()
	if err == nil && size < s.offset {
		s.offset, s.have, s.inside = 0, nil, false
	}
	return err
}

// next returns the next line with its newline, valid until the next call. For a line longer than
// the buffer it returns a part; continued means that it is not the first. io.EOF: there is no
// complete line now, but there may be one later.
func (s *scanner) next() (line []byte, continued bool, err error) {
	searched := 0
	for {
		if i := bytes.IndexByte(s.have[searched:], '\n'); i >= 0 {
			return s.give(searched+i+1, false)
		}
		if len(s.have) == len(s.buffer) {
			return s.give(len(s.have), true)
		}
		searched = len(s.have)
		if err := s.fill(); err != nil {
			return nil, false, err
		}
	}
}

func (s *scanner) give(n int, cut bool) ([]byte, bool, error) {
	line, continued := s.have[:n], s.inside
	s.have, s.inside = s.have[n:], cut
	return line, continued, nil
}

func (s *scanner) fill() error {
	n := copy(s.buffer, s.have)
	room := s.buffer[n:]
	if s.until != nil {
		room = room[:max(0, min(int64(len(room)), *s.until-s.offset))]
	}
	if len(room) == 0 {
		return io.EOF
	}
	m, err := s.file.ReadAt(room, s.offset)
	s.offset += int64(m)
	s.have = s.buffer[:n+m]
	if m > 0 {
		return nil
	}
	if err == nil {
		err = io.EOF
	}
	return err
}

// rest is what is left of a line without an end; empty if a part of it was returned already.
func (s *scanner) rest() []byte {
	if s.inside {
		return nil
	}
	return s.have
}

// tail returns where the last n lines begin within the first size bytes. Lines are those that the
// program wrote: several parts of a line count as one.
func tail(f io.ReaderAt, size, n int64) (int64, error) {
	if n <= 0 {
		return size, nil
	}
	var (
		lines   int64
		buffer  = make([]byte, block)
		newline = int64(-1) // the newline found before, which ends the line that begins behind the one found now
	)
	for right := size; right > 0; {
		left := max(0, right-block)
		part := buffer[:right-left]
		if _, err := f.ReadAt(part, left); err != nil && err != io.EOF {
			return 0, err
		}
		for i := bytes.LastIndexByte(part, '\n'); i >= 0; i = bytes.LastIndexByte(part[:i], '\n') {
			found := left + int64(i)
			// A line that ends here counts if it is the last part of what the program wrote.
			if newline >= 0 && whole(f, found+1, newline) {
				lines++
				if lines == n+1 {
					return newline + 1, nil
				}
			}
			newline = found
		}
		right = left
	}
	if newline >= 0 && whole(f, 0, newline) && lines+1 == n+1 {
		return newline + 1, nil
	}
	return 0, nil
}

// headerSize is more than the time, the stream and the tags of a line take.
const headerSize = 128

// whole reports whether the line from begin to end completes one that the program wrote. A line
// that no runtime wrote is not printed, and so not counted.
func whole(f io.ReaderAt, begin, end int64) bool {
	header := make([]byte, min(headerSize, end-begin))
	n, err := f.ReadAt(header, begin)
	if err != nil && err != io.EOF {
		return false
	}
	e, ok := parse(header[:n])
	return ok && !e.partial
}
