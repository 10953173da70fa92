// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllerjournal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// life steps a core like berth controller, adding or removing a taint each second.
type life struct {
	core   *eviction.Core
	writer *OfEviction
	ahead  time.Duration // lead of the wall clock
}

func begin(t *testing.T, dir string, l records.Limits) *life {
	t.Helper()
	v := &life{}
	v.core = eviction.New(eviction.Options{Wall: func(now time.Time) time.Time { return now.Add(v.ahead) }})
	var err error
	if v.writer, err = ForEviction(dir, "test", eviction.Options{}, l, nil); err != nil {
		t.Fatal(err)
	}
	v.writer.Save = func() any { return v.core.Save() }
	return v
}

func (v *life) tell(e eviction.Event) {
	now := time.Now().Round(0).UTC()
	v.writer.Add(now, now.Add(v.ahead), e, v.core.Step(now, e))
}

func (v *life) seconds(n int) {
	ten := int64(10)
	for i := range n {
		pod := eviction.Pod{Name: types.NamespacedName{Namespace: "d", Name: fmt.Sprint("p", i%50)}, UID: types.UID(fmt.Sprint("u", i)), Node: "n", Bound: time.Now()}
		pod.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: &ten}}
		v.tell(eviction.PodSeen{Pod: pod})
		node := eviction.Node{Name: "n", UID: "n", ResourceVersion: fmt.Sprint(i)}
		if i%2 == 0 {
			node.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}}
		}
		v.tell(eviction.NodeSeen{Node: node})
		time.Sleep(time.Second) // virtual time
		v.tell(eviction.Tick{})
	}
}

func playAll(t *testing.T, dir string) (results []records.Result) {
	t.Helper()
	files, err := records.Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		result, err := Replay(r, Options{})
		if err != nil || result.Parting != nil {
			t.Errorf("%s: %v, parts at %+v", name, err, result.Parting)
		}
		results = append(results, result)
	}
	return results
}

// TestAJournalOfAnyLengthIsReplayedFileByFile verifies that a journal continues in new files by
// size and by age, that the oldest files are deleted, and that each file can be replayed, even
// after an adjustment of the wall clock.
func TestAJournalOfAnyLengthIsReplayedFileByFile(t *testing.T) {
	for _, l := range []records.Limits{{Size: 1_000_000}, {Size: 1 << 30, Age: 10 * time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			v := begin(t, dir, l)
			v.seconds(600)
			v.ahead = -time.Hour
			v.seconds(600)
			if err := v.writer.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			results := playAll(t, dir)
			events := 0
			for _, result := range results {
				events += result.Events
			}
			if len(results) < 2 || l.Age == 0 && events >= 3600 || events < 300 {
				t.Errorf("%+v: %d files with %d of 3600 events", l, len(results), events)
			}
		})
	}
}

func TestAKillLosesASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		v := begin(t, dir, records.Limits{Size: 1 << 20})
		v.seconds(10)
		time.Sleep(time.Second) // virtual time
		synctest.Wait()
		if results := playAll(t, dir); len(results) != 1 || results[0].Events != 30 {
			t.Errorf("without an end %+v", results)
		}
		if err := v.writer.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAJournalThatIsCutOffIsPlayedUpToThere verifies that a file truncated at any position, such as
// within the core's state, is replayed up to that position without an error.
func TestAJournalThatIsCutOffIsPlayedUpToThere(t *testing.T) {
	data := twoFiles(t)
	for n := len(Magic) + 400; n < len(data); n += 7 {
		r, err := NewReader(bytes.NewReader(data[:n]))
		if err != nil {
			continue // in the header
		}
		if result, err := Replay(r, Options{}); err != nil || result.Parting != nil {
			t.Fatalf("cut at %d of %d: %+v, %v", n, len(data), result, err)
		}
	}
}

// twoFiles returns the second file of a journal, which begins with the core's state.
func twoFiles(t testing.TB) (data []byte) {
	t.Helper()
	dir := t.TempDir()
	core := eviction.New(eviction.Options{})
	w, err := ForEviction(dir, "test", eviction.Options{}, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Save = func() any { return core.Save() }
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 20 {
		e := eviction.PodSeen{Pod: eviction.Pod{Name: types.NamespacedName{Name: fmt.Sprint("p", i)}, UID: types.UID(fmt.Sprint(i)), Node: "n"}}
		w.Add(now, now, e, core.Step(now, e))
		if i == 9 {
			w.Turn(now)
		}
	}
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	files, err := records.Files(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%q, %v", files, err)
	}
	if data, err = os.ReadFile(files[0]); err != nil { // the second file sorts first, because its start time is virtual
		t.Fatal(err)
	}
	return data
}

func TestWhatIsNoJournalOfTheControllersIsRefused(t *testing.T) {
	if _, err := NewReader(strings.NewReader("berth-journal 1\n")); !errors.Is(err, records.ErrOther) {
		t.Errorf("%v", err)
	}
	dir := t.TempDir()
	header := Header{Component: "another", Began: time.Now(), Options: json.RawMessage("{}")}
	f, err := records.Create(dir, Magic, header, header.Began, records.Limits{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := records.Files(dir)
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Replay(r, Options{}); err == nil || !strings.Contains(err.Error(), `"another"`) {
		t.Errorf("%v", err)
	}
}

// FuzzReplay verifies that any file contents lead to an error or a result, never a panic.
func FuzzReplay(f *testing.F) {
	f.Add(twoFiles(f))
	f.Add([]byte(Magic))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if r, err := NewReader(bytes.NewReader(data)); err == nil {
			_, _ = Replay(r, Options{})
		}
	})
}
