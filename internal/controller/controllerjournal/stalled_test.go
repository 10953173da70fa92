// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllerjournal

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// stalling is a file whose writes block while the test occupies place.
type stalling struct {
	io.WriteCloser
	place chan struct{}
}

func (f stalling) Write(b []byte) (int, error) {
	f.place <- struct{}{}
	defer func() { <-f.place }()
	return f.WriteCloser.Write(b)
}

// TestAStalledDiskHoldsNobodyUp verifies that the core is not delayed while large objects arrive
// and the disk stalls. Excess records are lost and counted, and the journal continues in another
// file.
func TestAStalledDiskHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, place, lost := t.TempDir(), make(chan struct{}, 1), 0
		create := func(h Header) (*records.File, error) {
			f, err := os.Create(filepath.Join(dir, records.Name(h.Began)))
			if err != nil {
				return nil, err
			}
			lost += h.Lost
			return records.Begin(stalling{f, place}, Magic, h, h.Began, records.Limits{Size: 1 << 40})
		}
		var lines []string
		v := &life{}
		v.core = eviction.New(eviction.Options{Wall: func(now time.Time) time.Time { return now }})
		var err error
		v.writer, err = start[eviction.Event, eviction.Action](Header{Component: Eviction}, eviction.Options{}, ofEviction,
			func(err error) { lines = append(lines, err.Error()) }, create)
		if err != nil {
			t.Fatal(err)
		}
		var counted atomic.Int64
		v.writer.OnLost(func() { counted.Add(1) })
		v.writer.Save = func() any { return v.core.Save() }

		v.seconds(100)
		place <- struct{}{}
		large := eviction.Node{Name: "large", UID: "large", Taints: []v1.Taint{{Key: "k", Value: strings.Repeat("x", 1_300_000), Effect: v1.TaintEffectNoSchedule}}}
		for range 100 {
			v.tell(eviction.NodeSeen{Node: large})
		}
		v.seconds(100)
		<-place
		v.seconds(100)
		if err := v.writer.Close(context.Background()); err != nil {
			t.Fatal(err)
		}

		results := playAll(t, dir)
		if len(results) != 2 || len(lines) != 2 || lost < 300 || results[0].Events+results[1].Events+lost != 1000 {
			t.Errorf("%d of 1000 records lost, %+v; %q", lost, results, lines)
		}
		if counted.Load() != int64(lost) {
			t.Errorf("%d records are counted as lost of %d", counted.Load(), lost)
		}
	})
}
