// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// writeControllerJournals records, like berth controller, the eviction of a pod tolerating a taint
// for five seconds and the loss of a node.
func writeControllerJournals(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }

	evictions, err := controllerjournal.ForEviction(filepath.Join(dir, controllerjournal.Eviction), "test", eviction.Options{}, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	five := int64(5)
	pod := eviction.Pod{
		Name: types.NamespacedName{Namespace: "shop", Name: "web-0"}, UID: "u", ResourceVersion: "3", Node: "n1", Bound: began,
		Tolerations: []v1.Toleration{{Key: "disk", Operator: v1.TolerationOpExists, TolerationSeconds: &five}},
	}
	node := eviction.Node{Name: "n1", UID: "n", ResourceVersion: "1"}
	tainted := node
	tainted.ResourceVersion, tainted.Taints = "2", []v1.Taint{{Key: "disk", Effect: v1.TaintEffectNoExecute}}
	evictor := eviction.New(eviction.Options{})
	for _, e := range []struct {
		at float64
		eviction.Event
	}{
		{0, eviction.NodeSeen{Node: node}},
		{1, eviction.PodSeen{Pod: pod}},
		{10, eviction.NodeSeen{Node: tainted}},
		{15, eviction.Tick{}},
		{15, eviction.Answered{Ticket: 1}}, // the response to the note's request
		{15.1, eviction.Answered{Ticket: 2, Node: &tainted}},
		{15.2, eviction.Answered{Ticket: 3, Pod: &pod}},
		{15.3, eviction.Answered{Ticket: 4}},
		{16, eviction.PodGone{Name: pod.Name, UID: pod.UID}},
	} {
		evictions.Add(at(e.at), at(e.at), e.Event, evictor.Step(at(e.at), e.Event))
	}
	o := nodehealth.Defaults()
	health, err := controllerjournal.ForNodeHealth(filepath.Join(dir, controllerjournal.NodeHealth), "test", o, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	silent := nodehealth.Node{Name: "n1", UID: "n", ResourceVersion: "1", Created: began, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}
	other := silent
	other.Name, other.UID = "n2", "m"
	watcher := nodehealth.New(o)
	for _, e := range []struct {
		at float64
		nodehealth.Event
	}{
		{0, nodehealth.NodeSeen{Node: silent}},
		{0, nodehealth.NodeSeen{Node: other}},
		{0, nodehealth.NodesListing{}},
		{0, nodehealth.NodeSeen{Node: silent}},
		{0, nodehealth.NodeSeen{Node: other}},
		{0, nodehealth.NodesListed{}},
		{0, nodehealth.LeasesListed{}},
		{40, nodehealth.LeaseSeen{Name: "n2", Renewed: at(40)}},
		{60, nodehealth.Tick{}},
	} {
		health.Add(at(e.at), at(e.at), e.Event, watcher.Step(at(e.at), e.Event))
	}
	for _, end := range []func(context.Context) error{evictions.Close, health.Close} {
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// threeControllerFiles writes a taint eviction journal of three files, each one minute long.
func threeControllerFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	core := eviction.New(eviction.Options{})
	w, err := controllerjournal.ForEviction(dir, "test", eviction.Options{}, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Save = func() any { return core.Save() }
	at := time.Now().Round(0).UTC()
	for i := range 3 {
		if i > 0 {
			at = at.Add(time.Minute)
			w.Turn(at)
		}
		e := eviction.PodSeen{Pod: eviction.Pod{Name: types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("web-", i)}, UID: types.UID(fmt.Sprint(i)), Node: "n"}}
		w.Add(at, at, e, core.Step(at, e))
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReplayOfTheControllersJournals(t *testing.T) {
	dir := writeControllerJournals(t)
	code, out, errors := runReplay(dir)
	if code != 0 || strings.Count(out, "the same actions, byte for byte") != 2 || strings.Contains(out, "bound") {
		t.Errorf("exit code %d\n%s%s", code, out, errors)
	}
	code, out, errors = runReplay(dir, "--pod", "shop/web-0")
	want := `2026-01-01T00:00:01.000Z  seen on node n1, version 3
2026-01-01T00:00:10.000Z  taints of n1: disk:NoExecute
2026-01-01T00:00:10.000Z  due 00:00:15 for disk:NoExecute
2026-01-01T00:00:15.100Z    mark pod shop/web-0
2026-01-01T00:00:15.200Z  answer: OK (mark pod shop/web-0)
2026-01-01T00:00:15.200Z    event: Marking for deletion Pod shop/web-0
2026-01-01T00:00:15.200Z    delete pod shop/web-0 uid u
2026-01-01T00:00:15.300Z  answer: OK (delete pod shop/web-0 uid u)
2026-01-01T00:00:16.000Z  gone
`
	if code != 0 || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, errors, want)
	}
	code, out, errors = runReplay(filepath.Join(dir, controllerjournal.NodeHealth), "--node", "n1")
	for _, line := range []string{
		"2026-01-01T00:00:00.000Z  conditions of n1: Ready=True",
		"2026-01-01T00:01:00.000Z    event NodeNotReady: Node n1 status is now: NodeNotReady",
		"2026-01-01T00:01:00.000Z    status of n1: Ready=Unknown",
	} {
		if code != 0 || !strings.Contains(out, line) || strings.Contains(out, "n2") {
			t.Errorf("exit code %d, no %q in\n%s%s", code, line, out, errors)
		}
	}
}

func TestReplayTellsWhereAControllerParts(t *testing.T) {
	dir := filepath.Join(writeControllerJournals(t), controllerjournal.Eviction)
	edited := filepath.Join(t.TempDir(), "edited.journal")
	rewrite(t, dir, edited)
	code, out, errors := runReplay(edited)
	for _, want := range []string{"diverges at event 3, 2026-01-01T00:00:15Z",
		`ReadNode {"Ticket":2,"Node":"n9"}`, `ReadNode {"Ticket":2,"Node":"n1"}`} {
		if code != print.ExitHeld || !strings.Contains(out, want) {
			t.Errorf("exit code %d, does not say %q:\n%s%s", code, want, out, errors)
		}
	}
}

// rewrite copies a journal, modifying the recorded node.
func rewrite(t *testing.T, dir, to string) {
	t.Helper()
	files, err := records.Files(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var header controllerjournal.Header
	in, err := records.NewReader(bytes.NewReader(data), controllerjournal.Magic, &header)
	if err != nil {
		t.Fatal(err)
	}
	out, err := records.Create(filepath.Dir(to), controllerjournal.Magic, header, header.Began, records.Limits{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for record, err := in.Next(); err == nil; record, err = in.Next() {
		said := []byte(`ReadNode {"Ticket":2,"Node":"n`)
		if i := bytes.Index(record, said); i >= 0 {
			record[i+len(said)] = '9'
		}
		if err := out.Write(record); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	files, err = records.Files(filepath.Dir(to))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(files[0], to); err != nil {
		t.Fatal(err)
	}
}

func TestReplayRefusesFlagsOfTheOtherJournals(t *testing.T) {
	controllers, scheduler := writeControllerJournals(t), writeJournal(t, func(s string) string { return s })
	config := file(t, "config.yaml", replayedConfiguration)
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{controllers, "--config", config}, "is a journal of the controllers; only the scheduler has such a configuration"},
		{[]string{scheduler, "--node", "n"}, "is a journal of the scheduler"},
		{[]string{controllers, "--node", "n", "--pod", "p"}, "--pod: cannot be used with --node"},
		{[]string{controllers, "--node", "n", "-o", "json"}, "--pod and --node: cannot be used with --output"},
	} {
		if code, _, errors := runReplay(row.args...); code != exitUsage || !strings.Contains(errors, row.want) {
			t.Errorf("%v: exit code %d, %s, want %q", row.args, code, errors, row.want)
		}
	}
}
