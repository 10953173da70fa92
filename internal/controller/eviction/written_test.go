// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// TestJournalsOfAllLivesAreReplayed records random lives with every possible failure. Each life of
// the controller has a journal, which is continued in another file every few seconds. The test
// verifies that the replay of each file by itself yields the same actions, byte for byte.
func TestJournalsOfAllLivesAreReplayed(t *testing.T) {
	const lives = 60
	dir := t.TempDir()
	eachSeed(lives, func(seed uint64) bool {
		w := New(seed)
		j := written{world: w, dir: filepath.Join(dir, fmt.Sprint(seed))}
		w.NewCore = j.core
		w.Controller.Observe = j.told
		Churn(w)
		if err := j.end(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		return !t.Failed()
	})
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.journal"))
	if err != nil || len(files) < 2*lives {
		t.Fatalf("%d files of %d lives, %v", len(files), lives, err)
	}
	requests := 0
	for _, name := range files {
		result, err := replayed(name)
		if err != nil || result.Parting != nil || result.Cut {
			t.Fatalf("%s: %v, %+v, parts at %+v", name, err, result, result.Parting)
		}
		requests += result.Actions
	}
	t.Logf("%d files, %d actions", len(files), requests)
	if requests == 0 {
		t.Error("the lives are too quiet to show anything")
	}
}

// written is a journal of a world's controller.
type written struct {
	world  *World
	dir    string
	life   int
	writer *controllerjournal.OfEviction
	turned time.Time
	err    error
}

// core returns a Core for a new life of the controller, and begins its journal.
func (j *written) core() *eviction.Core {
	if err := j.end(); err != nil {
		j.err = err
	}
	j.life++
	o := eviction.Options{Wall: j.world.Controller.Wall}
	c := eviction.New(o)
	var err error
	if j.writer, err = controllerjournal.ForEviction(filepath.Join(j.dir, fmt.Sprint(j.life)), "test", o, records.Limits{Size: 1 << 30}, nil); err != nil {
		panic(err)
	}
	j.writer.Save = func() any { return c.Save() }
	j.turned = j.world.Now
	return c
}

func (j *written) told(e eviction.Event, actions []eviction.Action) {
	w := j.world
	j.writer.Add(w.Now, w.Controller.Wall(w.Now), e, actions)
	if w.Now.Sub(j.turned) > 2*time.Second {
		j.writer.Turn(w.Now)
		j.turned = w.Now
	}
}

func (j *written) end() error {
	if j.writer != nil {
		if err := j.writer.Close(context.Background()); err != nil {
			return err
		}
		j.writer = nil
	}
	return j.err
}

func replayed(name string) (records.Result, error) {
	f, err := os.Open(name)
	if err != nil {
		return records.Result{}, err
	}
	defer f.Close()
	r, err := controllerjournal.NewReader(f)
	if err != nil {
		return records.Result{}, err
	}
	return controllerjournal.Replay(r, controllerjournal.Options{})
}
