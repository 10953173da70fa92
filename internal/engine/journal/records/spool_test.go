// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// disk is a disk that writes only while it is not stalled.
type disk struct {
	mu      sync.Mutex // held while the disk is stalled
	written bytes.Buffer
}

func (d *disk) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.written.Write(b)
}

func (*disk) Close() error { return nil }

// stalledSpool returns a spool with its first file on a stalled disk.
func stalledSpool(t *testing.T, single bool, notify func(error)) (*Spool, *disk) {
	t.Helper()
	d := &disk{}
	f, err := Begin(d, "test\n", nil, time.Now(), Limits{Size: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	return NewSpool(f, single, notify), d
}

// countRecords reads a file, which must end with a whole record.
func countRecords(t *testing.T, d *disk) (n int) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(d.written.Bytes()), "test\n", &struct{}{})
	for err == nil {
		if _, err = r.Next(); err == nil {
			n++
		}
	}
	if !errors.Is(err, io.EOF) || r.Cut {
		t.Errorf("after %d records: %v, cut: %v", n, err, r.Cut)
	}
	return n
}

// TestAStalledDiskIsNotWaitedFor verifies that the queued records are bounded in bytes, that lost
// records are counted, and that the next file is due as soon as the queued records are written.
func TestAStalledDiskIsNotWaitedFor(t *testing.T) {
	for _, length := range []int{0, 1_300_000, 2 * mostBytes} {
		total := mostBytes/(length+PieceCost) + 100 + fileBuffer/(length+1) // plus the file's buffer
		var lines []string
		s, d := stalledSpool(t, false, func(err error) { lines = append(lines, err.Error()) })
		record := make([]byte, length)
		for i := range total {
			if err := s.Add(time.Time{}, record); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
		}
		s.mu.Lock()
		size, lost := s.size, s.lost
		s.mu.Unlock()
		if size > max(mostBytes, length+PieceCost) || lost == 0 || s.Due() {
			t.Errorf("%d bytes wait, %d records are lost, due: %v", size, lost, s.Due())
		}

		d.mu.Unlock()
		for !s.TakeDue() {
			time.Sleep(time.Millisecond)
		}
		if s.TakeDue() || s.Due() {
			t.Error("two files are due")
		}
		next := &disk{}
		s.Turn(0, func(n int) (*File, error) {
			if n != lost {
				t.Errorf("the next file hears of %d lost records of %d", n, lost)
			}
			return Begin(next, "test\n", nil, time.Now(), Limits{Size: 1 << 40})
		})
		if err := errors.Join(s.Add(time.Time{}, record), s.Close()); err != nil {
			t.Fatal(err)
		}
		if n := countRecords(t, d); n != total-lost || countRecords(t, next) != 1 {
			t.Errorf("of %d records %d are lost and %d are written", total, lost, n)
		}
		if len(lines) != 2 || !strings.Contains(lines[0], "does not keep up") || !strings.Contains(lines[1], "records lost: ") {
			t.Errorf("told: %q", lines)
		}
	}
}

// TestAStateMayBeLarge verifies that the state at the beginning of a file does not count against
// the limit of queued bytes.
func TestAStateMayBeLarge(t *testing.T) {
	s, d := stalledSpool(t, false, nil)
	next := &disk{}
	s.Turn(3*mostBytes, func(int) (*File, error) { return Begin(next, "test\n", nil, time.Now(), Limits{Size: 1 << 40}) })
	for range 3 {
		if err := s.Add(time.Time{}, make([]byte, mostBytes)); err != nil {
			t.Fatal(err)
		}
	}
	d.mu.Unlock()
	if err := s.Close(); err != nil || countRecords(t, next) != 3 {
		t.Errorf("%d of 3 records are written: %v", countRecords(t, next), err)
	}
}

// TestAJournalOfOneFileEndsWhenTheDiskStalls verifies that a journal of a single file ends when the
// disk does not keep up, and that its queued records are still written.
func TestAJournalOfOneFileEndsWhenTheDiskStalls(t *testing.T) {
	s, d := stalledSpool(t, true, nil)
	record := make([]byte, 1_300_000)
	n := 0
	for ; n < 1000; n++ {
		if err := s.Add(time.Time{}, record); errors.Is(err, ErrBehind) {
			break
		}
	}
	d.mu.Unlock()
	if err := s.Close(); !errors.Is(err, ErrBehind) || countRecords(t, d) != n || n == 1000 {
		t.Errorf("%d records were kept, and %d are written: %v", n, countRecords(t, d), err)
	}
}

// TestLostRecordsAreToldAtTheEnd verifies that Close reports the number of lost records if no other
// file followed.
func TestLostRecordsAreToldAtTheEnd(t *testing.T) {
	s, d := stalledSpool(t, false, nil)
	for range 3 {
		if err := s.Add(time.Time{}, make([]byte, mostBytes)); err != nil {
			t.Fatal(err)
		}
	}
	d.mu.Unlock()
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "records lost: 2") {
		t.Errorf("it ended with %v", err)
	}
}
