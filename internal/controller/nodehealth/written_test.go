// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/response"
)

// TestJournalsOfChaosAreReplayed records the controllers of random clusters in journals, which are
// rotated frequently. It verifies that the replay of each file yields the same actions, byte for
// byte.
func TestJournalsOfChaosAreReplayed(t *testing.T) {
	const seeds = 20
	dir := t.TempDir()
	for seed := range uint64(seeds) {
		j := written{dir: filepath.Join(dir, fmt.Sprint(seed))}
		chaos(rand.New(rand.NewPCG(seed, 1)), j.of)
		j.end(t)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.journal"))
	if err != nil || len(files) < 2*seeds {
		t.Fatalf("%d files of %d clusters, %v", len(files), seeds, err)
	}
	writes := 0
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := controllerjournal.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		result, err := controllerjournal.Replay(r, controllerjournal.Options{})
		if err != nil || result.Parting != nil || result.Cut {
			t.Fatalf("%s: %v, %+v, parts at %+v", name, err, result, result.Parting)
		}
		writes += result.Actions
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d files, %d actions", len(files), writes)
	if writes == 0 {
		t.Error("the clusters are too quiet to show anything")
	}
}

// written is a journal of a cluster's controller.
type written struct {
	cluster *cluster
	dir     string
	writer  *controllerjournal.OfNodeHealth
	all     []*controllerjournal.OfNodeHealth
	turned  time.Time
}

// of attaches a new journal to each controller of the cluster.
func (j *written) of(c *cluster) {
	j.cluster = c
	c.began, c.process.Observe = j.began, j.told
	j.began()
}

func (j *written) began() {
	dir := filepath.Join(j.dir, fmt.Sprint(len(j.all)))
	w, err := controllerjournal.ForNodeHealth(dir, "test", j.cluster.options, records.Limits{Size: 1 << 30}, nil)
	if err != nil {
		panic(err)
	}
	core := j.cluster.core
	w.Save = func() any { return core.Save() }
	j.writer, j.turned, j.all = w, j.cluster.Now, append(j.all, w)
	if len(j.all) == 1 {
		w.Turn(j.cluster.Now) // begin another file, for a core that already has state
	}
}

func (j *written) told(e nodehealth.Event, actions []nodehealth.Action) {
	now := j.cluster.Now
	j.writer.Add(now, j.cluster.process.Wall(now), e, actions)
	answer, _ := e.(nodehealth.Answered)
	// The second condition rotates the journal after failed requests, while writes are in back-off.
	if since := now.Sub(j.turned); since > 97*time.Second || since >= time.Millisecond && answer.Outcome != response.OK {
		j.writer.Turn(now)
		j.turned = now
	}
}

func (j *written) end(t *testing.T) {
	t.Helper()
	for _, w := range j.all {
		if err := w.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}
