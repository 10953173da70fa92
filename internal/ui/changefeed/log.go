// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import "slices"

// Frame is a state or a change, encoded for sending.
type Frame struct {
	Seq   uint64
	Fresh bool
	Data  []byte // a model.Delta as JSON
}

// The log holds the changes of the last minutes: after a connection loss of up to that length, a
// page continues at the same point.
const (
	mostFrames = 3000
	mostBytes  = 16 << 20
)

// log holds the last frames, in order and without a gap. It is guarded by the Watcher's mutex.
type log struct {
	frames []Frame
	bytes  int
	next   uint64 // number of the next frame; the first frame is 1
}

// addFrame adds a frame, and drops the oldest ones if the frames are too many or too large. The
// newest is always kept.
func (l *log) addFrame(data []byte) {
	l.frames = append(l.frames, Frame{Seq: l.next, Data: data})
	l.bytes += len(data)
	l.next++
	drop := 0
	for len(l.frames)-drop > mostFrames || l.bytes > mostBytes && len(l.frames)-drop > 1 {
		l.bytes -= len(l.frames[drop].Data)
		drop++
	}
	l.frames = slices.Delete(l.frames, 0, drop)
}

// framesAfter returns the frames after a number, and whether they are contiguous with it. The
// frames are shared by all readers, and must not be changed.
func (l *log) framesAfter(seq uint64) (frames []Frame, ok bool) {
	// Without frames, first is the number of the next frame.
	first := l.next - uint64(len(l.frames))
	if seq >= l.next || seq+1 < first {
		return nil, false
	}
	return slices.Clone(l.frames[seq+1-first:]), true
}
