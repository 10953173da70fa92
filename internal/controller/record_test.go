// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/eviction/evictioncontroller"
	"github.com/berth-k8s/berth/internal/controller/nodehealth/nodecontroller"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// TestEachControllerWritesAJournalOfItsOwn verifies that controllers have separate journals that
// share the flag's limit.
func TestEachControllerWritesAJournalOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	o := parse(t, "--journal="+dir, "--journal-size=10Mi")
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	c := &Controller{options: o}
	if l := c.journalLimits(); l.Size != 5<<20 {
		t.Errorf("%d bytes for each", l.Size)
	}
	client, err := kubernetes.NewForConfig(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	events := eventlog.New(client, "test")
	evictor := evictioncontroller.New(client, evictioncontroller.Events{Nodes: events}, o.Eviction)
	endEviction, err := startJournal(c, evictioncontroller.Name, controllerjournal.ForEviction, c.options.Eviction, evictor.Record)
	if err != nil {
		t.Fatal(err)
	}
	endHealth, err := startJournal(c, nodecontroller.Name, controllerjournal.ForNodeHealth, c.options.NodeHealth, nodecontroller.New(client, events, o.NodeHealth).Record)
	if err != nil {
		t.Fatal(err)
	}
	evictor.Step(time.Now(), eviction.Tick{})
	endEviction()
	endHealth()
	for name, want := range map[string]int{controllerjournal.Eviction: 1, controllerjournal.NodeHealth: 0} {
		files, err := records.Files(filepath.Join(dir, name))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: %q, %v", name, files, err)
		}
		f, err := os.Open(files[0])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := controllerjournal.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		if result, err := controllerjournal.Replay(r, controllerjournal.Options{}); err != nil || result.Parting != nil || result.Events != want {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
	}
}
