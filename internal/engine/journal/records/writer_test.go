// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"testing"
)

// kept retains its records.
type kept []int

func (k *kept) Take(r int) error     { *k = append(*k, r); return nil }
func (*kept) Ended() <-chan struct{} { return nil }
func (*kept) Close() error           { return nil }

// TestARecordMayComeAfterTheEnd verifies that all records added before Close are written, and that
// Add does not block afterwards. The owner of a core that is stuck in a plugin during Close may
// continue before the process exits.
func TestARecordMayComeAfterTheEnd(t *testing.T) {
	var k kept
	w := Start(&k, nil)
	for i := range 1000 {
		w.Add(i)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(k) != 1000 || k[0] != 0 || k[999] != 999 {
		t.Errorf("%d of 1000 records are written", len(k))
	}
	for range 2 * mostWaiting { // more than can be queued
		w.Add(1000)
	}
	if len(k) != 1000 {
		t.Errorf("%d records are written after the end", len(k)-1000)
	}
}

// TestWhatComesAfterTheEndIsCounted verifies that records added after the end of the journal are
// counted as lost.
func TestWhatComesAfterTheEndIsCounted(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	w := Start[int](endedInto{ended}, nil)
	<-w.Done()
	lost := 0
	w.OnLost(func() { lost++ })
	for i := range 10 {
		w.Add(i)
	}
	if lost != 10 {
		t.Errorf("%d of 10 records are counted", lost)
	}
}

// endedInto is a journal that has ended.
type endedInto struct{ ended chan struct{} }

func (endedInto) Take(int) error           { return nil }
func (e endedInto) Ended() <-chan struct{} { return e.ended }
func (endedInto) Close() error             { return nil }
