// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// chunk is the text of one object, which is a document or an item of a List, with the number of its
// first line. It is a copy, so the stream's buffer can be reused. The text is freed as soon as the
// chunk has been decoded.
type chunk struct {
	text string
	line int32
	json bool
	item bool // item of a List; in YAML the text is then a sequence of one item
	// head is the text before the items of the List. Only the head of a PodList declares that its
	// items are pods.
	head string
}

// buffers holds unused readers, because the query service reads many small manifests.
var buffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 1<<16) }}

// splitStream cuts a stream into objects without parsing them, and calls emit for each, in order.
// Lists are split into their items, so that a file of a million pods needs little memory, and
// several workers can parse it. It stops at an error of emit.
//
//	apiVersion: v1          head
//	kind: PodList           head
//	items:
//	- metadata: {name: a}   chunk 1
//	- metadata: {name: b}   chunk 2
func splitStream(r io.Reader, emit func(chunk) error) error {
	buffer := buffers.Get().(*bufio.Reader)
	defer buffers.Put(buffer)
	buffer.Reset(r)
	reader := inUTF8(buffer)
	first, err := firstByte(reader)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	// Detect the magic number of gzip, because recordings are often compressed to share them.
	if ahead, _ := reader.Peek(2); string(ahead) == "\x1f\x8b" {
		return errors.New("is compressed: unpack it first, such as with gunzip")
	}

	if first == '{' {
		s := jsonSplitter{input: reader, line: 1, emit: emit}
		return s.splitJSON()
	}

	s := yamlSplitter{input: reader, emit: emit}
	return s.splitYAML()
}

// firstByte peeks at the first byte that is not white space. After 32 KiB of white space it gives
// up and returns a space, which is read as YAML.
func firstByte(reader *bufio.Reader) (byte, error) {
	for n := 64; ; n *= 2 {
		ahead, err := reader.Peek(n)
		if rest := bytes.TrimSpace(ahead); len(rest) > 0 {
			return rest[0], nil
		}
		if err != nil || n >= 1<<15 {
			return ' ', err
		}
	}
}

// yamlSplitter works by lines. A document ends at ---. Within a document, the line "items:" at the
// left margin begins the items of a List. Each item begins with a dash at the indentation of the
// first dash.
//
// Both lines are recognised only at the left margin, so an indented literal block cannot contain
// them.
type yamlSplitter struct {
	input *bufio.Reader
	emit  func(chunk) error

	// buf is the object being collected.
	buf    []byte
	head   string // text before the items of a List
	start  int32  // first line of buf
	line   int32  // current line
	blank  bool   // buf has only white space and comments
	inList bool
	dash   int // indentation of the items' dashes; -1 before the first item
}

// splitYAML cuts the stream up to its end. The last line may lack its line break.
func (s *yamlSplitter) splitYAML() error {
	s.blank = true
	for {
		text, err := s.readLine()
		if len(text) > 0 {
			s.line++
			if err := s.takeLine(text); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return s.endDocument()
		}
		if err != nil {
			return err
		}
	}
}

// readLine returns the next line; it is valid until the next call.
func (s *yamlSplitter) readLine() ([]byte, error) {
	text, err := s.input.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return text, err
	}
	// The line is longer than the buffer, such as an annotation with a whole object in it.
	long := bytes.Clone(text)
	for errors.Is(err, bufio.ErrBufferFull) {
		text, err = s.input.ReadSlice('\n')
		long = append(long, text...)
	}
	return long, err
}

// takeLine processes the next line, which ends a document, begins the items of a List, or belongs
// to the object being collected.
func (s *yamlSplitter) takeLine(text []byte) error {
	if s.line == 1 {
		// Drop the byte order mark written by editors on Windows.
		text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	}
	trimmed := bytes.TrimRight(text, " \t\r\n")
	indent := len(text) - len(bytes.TrimLeft(text, " "))
	content := trimmed[min(indent, len(trimmed)):]

	switch {
	case bytes.Equal(trimmed, []byte("---")) || bytes.HasPrefix(trimmed, []byte("--- #")):
		return s.endDocument()
	case s.inList:
		return s.takeInList(text, content, indent)
	case bytes.Equal(trimmed, []byte("items:")):
		s.head = string(s.buf) + "\n"
		s.buf, s.inList, s.dash, s.blank = s.buf[:0], true, -1, true
		return nil
	}

	s.addLine(text, content)
	return nil
}

// addLine adds a line to the object being collected. It drops leading comments and blank lines, so
// that the object's line is its first line of content.
func (s *yamlSplitter) addLine(text, content []byte) {
	if s.blank && (len(content) == 0 || content[0] == '#') {
		return // no content so far
	}
	if s.blank {
		s.blank, s.start = false, s.line
	}
	s.buf = append(s.buf, text...)
}

// takeInList processes a line after "items:". Depending on its indentation, the line belongs to the
// current item, begins the next item, or ends the items:
//
//	items:
//	- kind: Pod      a dash at s.dash: next item
//	  metadata: {}   indented more: the same item
//	metadata: {}     no dash, not indented more: a field of the List
func (s *yamlSplitter) takeInList(text, content []byte, indent int) error {
	isDash := len(content) > 0 && content[0] == '-' && (len(content) == 1 || content[1] == ' ')
	switch {
	case len(content) == 0 || content[0] == '#' && indent <= max(s.dash, 0):
		s.addLine(text, content)
		return nil
	case s.dash < 0 && isDash:
		s.dash = indent
	case s.dash < 0 || indent < s.dash || indent == s.dash && !isDash:
		// Fields of the List follow its items.
		if err := s.endItem(); err != nil {
			return err
		}
		s.inList = false
		s.blank = false
		s.start = s.line
		s.buf = append(s.buf, text...)
		return nil
	}
	if isDash && indent == s.dash {
		if err := s.endItem(); err != nil {
			return err
		}
	}
	s.addLine(text, content)
	return nil
}

// endItem emits the collected item, if any.
func (s *yamlSplitter) endItem() error {
	if s.blank {
		return nil
	}
	c := chunk{text: string(s.buf), line: s.start, item: true, head: s.head}
	s.buf, s.blank = s.buf[:0], true
	return s.emit(c)
}

// endDocument emits the collected document, and begins the next one. It drops the fields that
// follow a List's items, and documents with only comments.
func (s *yamlSplitter) endDocument() error {
	isList := s.inList || len(s.head) > 0
	if s.inList {
		if err := s.endItem(); err != nil {
			return err
		}
	}
	c := chunk{text: string(s.buf), line: s.start}
	s.buf, s.head, s.inList, s.blank = s.buf[:0], "", false, true
	if isList || strings.TrimSpace(c.text) == "" {
		return nil
	}
	return s.emit(c)
}

// jsonSplitter works by brackets outside strings. It emits each element of a top-level "items" as a
// chunk, and drops the rest of that object except its head. Several objects may follow each other,
// as from jq.
type jsonSplitter struct {
	input *bufio.Reader
	emit  func(chunk) error

	line, start int32
	buf         []byte
	depth       int
	word        []byte // last string at depth 1
	// items is set while the array under "items" is open: its elements are at depth 2. wasList is
	// set until the end of the enclosing object.
	items, wasList bool
	head           string
}

// splitJSON cuts the stream up to its end. If the text after an object is not JSON, it continues as
// YAML.
func (s *jsonSplitter) splitJSON() error {
	for {
		c, err := s.input.ReadByte()
		if errors.Is(err, io.EOF) {
			return s.flushRest()
		}
		if err != nil {
			return err
		}
		if s.depth == 0 && len(s.buf) == 0 && strings.IndexByte("{ \t\r\n", c) < 0 {
			// This is YAML resembling JSON: continue as YAML.
			if err := s.input.UnreadByte(); err != nil {
				return err
			}
			rest := yamlSplitter{input: s.input, emit: s.emit, line: s.line - 1}
			return rest.splitYAML()
		}
		switch {
		case c == '"', c == '\'' && s.mayQuote():
			if err := s.readString(c); err != nil {
				return err
			}
			continue
		// An item ends at the comma after it, or at the bracket after the last item. Neither
		// belongs to a chunk.
		case s.items && s.depth == 2 && (c == ',' || c == ']'):
			if err := s.flushChunk(true); err != nil {
				return err
			}
			if c == ']' {
				s.depth--
				s.items = false
			}
			continue
		case c == '{' || c == '[':
			s.depth++
			if c == '[' && s.depth == 2 && string(s.word) == "items" {
				s.items, s.wasList, s.head = true, true, string(s.buf)
				s.buf = s.buf[:0]
				continue
			}
		case c == '}' || c == ']':
			s.depth--
		}
		s.putByte(c)
		if c == '}' && s.depth == 0 {
			// Drop the rest of a List, whose items have been emitted.
			if s.wasList {
				s.buf, s.wasList = s.buf[:0], false
			} else if err := s.flushChunk(false); err != nil {
				return err
			}
			s.word = s.word[:0]
		}
	}
}

// putByte adds a byte to the object being collected, unless it is leading white space, and counts
// lines.
func (s *jsonSplitter) putByte(c byte) {
	if c == '\n' {
		s.line++
	}
	if len(s.buf) == 0 {
		if c == ' ' || c == '\n' || c == '\t' || c == '\r' {
			return
		}
		s.start = s.line
	}
	s.buf = append(s.buf, c)
}

// mayQuote reports whether a single quote begins a string here: only in YAML, at the beginning of a
// value or a key.
func (s *jsonSplitter) mayQuote() bool {
	before := bytes.TrimRight(s.buf, " \t\r\n")
	return len(before) > 0 && strings.IndexByte(",[{:", before[len(before)-1]) >= 0
}

// readString reads a string up to its closing quote.
func (s *jsonSplitter) readString(quote byte) error {
	s.putByte(quote)
	begin := len(s.buf)
	for {
		c, err := s.input.ReadByte()
		if err != nil {
			return s.flushRest()
		}

		s.putByte(c)
		switch {
		case c == '\\' && quote == '"':
			if c, err = s.input.ReadByte(); err != nil {
				return s.flushRest()
			}
			// An escaped quote does not end the string.
			s.putByte(c)
		case c == quote:
			if s.depth == 1 {
				s.word = append(s.word[:0], s.buf[begin:len(s.buf)-1]...)
			}
			return nil
		}
	}
}

// flushChunk emits the collected text, as an item of a List or as an object.
func (s *jsonSplitter) flushChunk(item bool) error {
	if len(s.buf) == 0 {
		return nil
	}
	c := chunk{text: string(s.buf), line: s.start, json: true, item: item}
	if item {
		c.head = s.head
	}
	s.buf = s.buf[:0]
	return s.emit(c)
}

// flushRest emits the remainder at the end of the file, if any: an unclosed object, which the
// parser will report.
func (s *jsonSplitter) flushRest() error {
	if len(s.buf) == 0 && s.depth > 0 {
		s.buf = append(s.buf, '{')
		s.start = s.line
	}
	return s.flushChunk(false)
}

// inUTF8 returns a reader of the file's text in UTF-8. The file may be in UTF-16, with or without a
// byte order mark, as written by PowerShell for kubectl get -o yaml > file.
func inUTF8(reader *bufio.Reader) *bufio.Reader {
	ahead, _ := reader.Peek(2)
	// The file is too short to be anything but UTF-8.
	if len(ahead) < 2 {
		return reader
	}
	order := unicode.LittleEndian
	switch first, second := ahead[0], ahead[1]; {
	case first == 0xff && second == 0xfe, first == 0xfe && second == 0xff: // a mark, which determines the order
	case first != 0 && second == 0: // a manifest begins with an ASCII character
	case first == 0 && second != 0:
		order = unicode.BigEndian
	default:
		return reader
	}
	decoder := unicode.UTF16(order, unicode.UseBOM).NewDecoder()
	return bufio.NewReaderSize(transform.NewReader(reader, decoder), 1<<16)
}
