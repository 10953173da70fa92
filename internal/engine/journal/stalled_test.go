// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// disk is a disk that may stall: writing requires its only slot.
type disk struct {
	place chan struct{}
	files []*bytes.Buffer
}

func (d *disk) create(h Header) (*records.File, error) {
	f := &diskFile{d, &bytes.Buffer{}}
	d.files = append(d.files, f.Buffer)
	return records.Begin(f, magic, h, h.Began, records.Limits{Size: 1 << 40})
}

type diskFile struct {
	*disk
	*bytes.Buffer
}

func (f *diskFile) Write(b []byte) (int, error) {
	f.place <- struct{}{}
	defer func() { <-f.place }()
	return f.Buffer.Write(b)
}

func (*diskFile) Close() error { return nil }

// TestAStalledDiskHoldsNobodyUp verifies that a stalled disk does not delay the core while large
// objects arrive. Records above the limit are lost and counted. When the disk recovers, the journal
// continues in another file, and both files are replayed to the same bytes.
func TestAStalledDiskHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{place: make(chan struct{}, 1)}
		var lines []string
		var counted atomic.Int64
		w, err := start(Header{Began: began, Seed: 1}, func(err error) { lines = append(lines, err.Error()) }, d.create)
		if err != nil {
			t.Fatal(err)
		}

		w.OnLost(func() { counted.Add(1) })
		drive(t, w, 300, func(round int, step func(cycle.Event)) {
			switch {
			case round == 100:
				d.place <- struct{}{}
			case round > 100 && round < 200: // labels of 1.3 MB, together more than the limit of queued bytes
				labels := map[string]string{"large": strings.Repeat("x", 1_300_000)}
				step(cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large", round%3), Labels: labels}}})
			case round == 200:
				<-d.place
			}
		})

		if len(d.files) != 2 || len(lines) != 2 {
			t.Fatalf("%d files; %q", len(d.files), lines)
		}
		for i, f := range d.files {
			r, err := NewReader(bytes.NewReader(f.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			result, err := Replay(r, Options{Profiles: defaults})
			if err != nil || result.Parting != nil || result.Cut || result.Bound < 99 {
				t.Errorf("file %d: %+v, %v", i, result, err)
			}
			if lost := r.Header.Lost; (lost > 100) != (i == 1) || i == 1 && int64(lost) != counted.Load() {
				t.Errorf("file %d comes after %d lost records of %d", i, lost, counted.Load())
			}
		}
	})
}
