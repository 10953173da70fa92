package logfile

import (
	"bytes"
	"time"
)

// Stream is where a program wrote to.
type Stream string

// The streams, by their names in the file.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// timeFormat has a fixed width, so that printed lines are aligned; what is read may have fewer
// digits.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// entry is one line of the file: a line that a program wrote, or a part of one.
type entry struct {
	time    []byte
	stream  Stream
	partial bool   // the line continues in the next entry of its stream
	text    []byte // with the newline that ends it, unless it is partial
}

// parse splits a line of the file; false if no runtime wrote it.
//
//	2026-11-20T14:55:00.123456789Z stdout F what the program said
func parse(line []byte) (entry, bool) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok || len(stamp) < len("2006-01-02T15:04:05Z") {
		return entry{}, false
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || (Stream(stream) != Stdout && Stream(stream) != Stderr) {
		return entry{}, false
	}
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return entry{}, false
	}
	// There may be more tags one day, after a colon.
	first, _, _ := bytes.Cut(tags, []byte{':'})
	e := entry{time: stamp, stream: Stream(stream), partial: string(first) == "P", text: text}
	if e.partial {
		e.text = bytes.TrimSuffix(text, []byte{'\n'})
	}
	return e, true
}

// at is when the line was written; false if that cannot be read.
func (e entry) at() (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, string(e.time))
	return t, err == nil
}
