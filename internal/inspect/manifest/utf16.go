// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// inUTF8 returns a reader of the file's text in UTF-8. The file may be in UTF-16, with or without a
// byte order mark, as written by PowerShell for kubectl get -o yaml > file.
func inUTF8(reader *bufio.Reader) *bufio.Reader {
	ahead, _ := reader.Peek(2)
	// The file is too short to be anything but UTF-8.
	if len(ahead) < 2 {
		return reader
	}
	var low, high int // positions of a unit's low and high byte
	marked := false
	switch first, second := ahead[0], ahead[1]; {
	case first == 0xff && second == 0xfe:
		low, high, marked = 0, 1, true
	case first == 0xfe && second == 0xff:
		low, high, marked = 1, 0, true
	case first != 0 && second == 0: // little-endian: a manifest begins with an ASCII character
		low, high = 0, 1
	// This is big-endian without a mark.
	case first == 0 && second != 0:
		low, high = 1, 0
	default:
		return reader
	}
	if marked {
		_, _ = reader.Discard(2) // cannot fail: Peek has read these bytes
	}
	return bufio.NewReaderSize(&utf16Reader{input: reader, low: low, high: high}, 1<<16)
}

// utf16Reader decodes UTF-16 while reading. Invalid units become U+FFFD.
type utf16Reader struct {
	input     *bufio.Reader
	low, high int
	rest      []byte // rest of the last rune, in UTF-8
}

// Read implements io.Reader.
func (r *utf16Reader) Read(into []byte) (n int, err error) {
	for n < len(into) {
		// A rune may exceed the remaining space: keep the rest for the next call.
		if len(r.rest) > 0 {
			copied := copy(into[n:], r.rest)
			r.rest = r.rest[copied:]
			n += copied
			continue
		}
		unit, err := r.readUnit()
		if err != nil {
			// Return the bytes first; the next call returns the error.
			if n > 0 {
				return n, nil
			}
			return 0, err
		}
		if utf16.IsSurrogate(unit) {
			second, err := r.readUnit()
			if err != nil {
				second = utf8.RuneError
			}
			unit = utf16.DecodeRune(unit, second)
		}
		r.rest = utf8.AppendRune(r.rest[:0], unit)
	}

	return n, nil
}

// readUnit reads two bytes: a rune, or half of a surrogate pair.
func (r *utf16Reader) readUnit() (rune, error) {
	var bytes [2]byte
	if _, err := io.ReadFull(r.input, bytes[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			return utf8.RuneError, nil // half a unit at the end of the file
		}
		return 0, err
	}
	return rune(bytes[r.high])<<8 | rune(bytes[r.low]), nil
}
