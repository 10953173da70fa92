// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import "testing"

func TestTheLogIsBoundedAndSaysWhenItDoesNotReachBack(t *testing.T) {
	l := log{next: 1}
	for range mostFrames + 100 {
		l.addFrame([]byte("0123456789"))
	}
	if len(l.frames) != mostFrames || l.bytes != 10*mostFrames {
		t.Errorf("%d frames of %d bytes", len(l.frames), l.bytes)
	}
	newest := l.next - 1
	for _, c := range []struct {
		after uint64
		want  int // -1: the log does not reach back far enough
	}{{newest, 0}, {newest - 1, 1}, {100, mostFrames}, {99, -1}, {0, -1}, {newest + 1, -1}} {
		frames, ok := l.framesAfter(c.after)
		if !ok {
			frames = nil
		}
		if ok != (c.want >= 0) || ok && len(frames) != c.want || len(frames) > 0 && frames[0].Seq != c.after+1 {
			t.Errorf("after %d of %d: %d frames, %v", c.after, newest, len(frames), ok)
		}
	}
	l.addFrame(make([]byte, 2*mostBytes))
	if len(l.frames) != 1 || l.bytes != 2*mostBytes {
		t.Errorf("after a frame that is larger than the log: %d frames of %d bytes", len(l.frames), l.bytes)
	}
}
