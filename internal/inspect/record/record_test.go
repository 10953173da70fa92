// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

func node(name string, taints ...any) apitest.Object {
	return apitest.Object{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "uid": name},
		"spec": map[string]any{"taints": taints}, "status": map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "8Gi", "pods": "110"}},
	}
}

func pod(name, on string) apitest.Object {
	return apitest.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{
			"name": name, "uid": name, "namespace": "default",
			"annotations": map[string]any{v1.LastAppliedConfigAnnotation: `{"password": "hunter2"}`},
		},
		"spec": map[string]any{"nodeName": on, "containers": []any{map[string]any{
			"name": "c", "image": "i", "args": []any{"--password=hunter2"}, "env": []any{map[string]any{"name": "PASSWORD", "value": "hunter2"}},
		}}},
	}
}

func client(t testing.TB, api *apitest.Server) *snapshot.Client {
	t.Helper()
	c, err := snapshot.NewClient(api.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// during records while do runs. It calls do once everything has been listed.
func during(t *testing.T, api *apitest.Server, dir string, size int64, do func(changes func() int)) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	counted := make(chan int, 10_000)
	ended := make(chan error, 1)
	go func() {
		ended <- record.Run(ctx, client(t, api), record.Options{
			Dir: dir, MaxBytes: size, Every: 20 * time.Millisecond, Progress: func(_, changes int) { counted <- changes },
		})
	}()
	do(func() int {
		select {
		case n := <-counted:
			return n
		case err := <-ended:
			t.Fatalf("the recording ended: %v", err)
		case <-time.After(20 * time.Second):
			t.Fatal("the recording says nothing")
		}
		return 0
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// until waits for count changes.
func until(changes func() int, count int) {
	for changes() < count {
	}
}

func TestObjectsAndChangesAreKept(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	api.Set("nodes", node("node-1"))
	api.Set("pods", pod("a", "node-1"))
	var before time.Time
	during(t, api, dir, 0, func(changes func() int) {
		changes()
		changes() // all changes have been written once
		before = time.Now()
		api.Set("nodes", node("node-1", map[string]any{"key": "k", "effect": "NoSchedule"}))
		api.Delete(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
		api.Set("pods", pod("b", "node-1"))
		until(changes, 3)
	})
	set, err := manifest.Read([]string{dir}, nil, manifest.Options{Lenient: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Nodes) != 1 || len(set.Nodes[0].Spec.Taints) != 1 || len(set.Pods) != 1 || set.Pods[0].Name != "b" || len(set.Ignored) > 0 {
		t.Errorf("at the end: %d nodes, %d pods, ignored %v", len(set.Nodes), len(set.Pods), set.Ignored)
	}
	earlier, err := record.At(dir, before)
	if err != nil {
		t.Fatal(err)
	}
	if len(earlier.Nodes) != 1 || len(earlier.Nodes[0].Spec.Taints) != 0 || len(earlier.Pods) != 1 || earlier.Pods[0].Name != "a" {
		t.Errorf("before the changes: %d nodes, %d pods", len(earlier.Nodes), len(earlier.Pods))
	}
	if _, err := simulate.Open(earlier, simulate.Options{}); err != nil {
		t.Error(err)
	}
	if _, err := record.At(dir, before.Add(-time.Hour)); err == nil || !strings.Contains(err.Error(), "nothing was recorded") {
		t.Errorf("an hour before: %v", err)
	}
	if text := everything(t, dir); strings.Contains(text, "hunter2") {
		t.Error("what is confidential was kept")
	}
}

func everything(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestARecordingGoesOnForItsOwnClusterOnly(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	api.Set("nodes", node("node-1"))
	for i := range 3 {
		during(t, api, dir, 0, func(changes func() int) {
			changes()
			changes()
			api.Set("pods", pod(fmt.Sprintf("p-%d", i), "node-1"))
			until(changes, 1)
		})
	}
	index, err := record.ReadIndex(dir)
	if err != nil || len(index.Sessions) != 3 {
		t.Fatalf("%v, %+v", err, index)
	}
	for i, s := range index.Sessions {
		set, err := record.At(dir, s.Until.Time)
		if err != nil || len(set.Pods) != i+1 {
			t.Errorf("at the end of session %d: %v, %d pods, want %d", i, err, len(set.Pods), i+1)
		}
	}
	other := apitest.New(t)
	other.Set("namespaces", apitest.Object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "kube-system", "uid": "other"}})
	err = record.Run(t.Context(), client(t, other), record.Options{Dir: dir, Once: true})
	if err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("another cluster: %v", err)
	}
}

// TestChangesBeforeAKillAreKept verifies that changes after the last checkpoint of a killed
// recording are recovered, up to a truncated line.
func TestChangesBeforeAKillAreKept(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	api.Set("nodes", node("node-1"))
	during(t, api, dir, 0, func(changes func() int) {
		changes()
		changes()
		api.Set("pods", pod("p", "node-1"))
		until(changes, 1)
	})
	path := filepath.Join(dir, record.IndexFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	index, err := record.ReadIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	session := index.Sessions[0]
	when := func(at metav1.MicroTime) string { b, _ := json.Marshal(at); return string(b) }
	text = bytes.Replace(text, []byte(`"until": `+when(session.Until)), []byte(`"until": `+when(session.Began)), 1)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	changes, err := os.OpenFile(filepath.Join(dir, session.Folder, "changes-000001.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := changes.WriteString(`{"at":"2026-11-21T1`); err != nil {
		t.Fatal(err)
	}
	_ = changes.Close()
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
		t.Fatal(err)
	}
	if index, err = record.ReadIndex(dir); err != nil || len(index.Sessions) != 2 || !index.Sessions[0].Until.After(session.Began.Time) {
		t.Fatalf("%v, %+v", err, index)
	}
	if set, err := record.At(dir, index.Sessions[0].Until.Time); err != nil || len(set.Pods) != 1 {
		t.Errorf("at the end of the killed session: %v, %+v", err, set)
	}
}

// TestTheSizeIsBoundedAndWhatIsLeftCanBeShown verifies that a recording beyond its limit forgets
// the oldest times, and can show all remaining times.
func TestTheSizeIsBoundedAndWhatIsLeftCanBeShown(t *testing.T) {
	const limit, rounds = 64 << 10, 1000
	api, dir := apitest.New(t), t.TempDir()
	api.Set("nodes", node("node-1"))
	for i := range 10 {
		api.Set("pods", pod(fmt.Sprintf("p-%d", i), "node-1"))
	}
	during(t, api, dir, limit, func(changes func() int) {
		changes()
		changes()
		for i := range rounds {
			api.Set("nodes", node("node-1", map[string]any{"key": "round", "value": fmt.Sprint(i), "effect": "NoSchedule"}))
			if i%100 == 99 {
				until(changes, i+1)
			}
		}
	})
	var size int64
	folders, err := os.ReadDir(filepath.Join(dir, "sessions"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		files, err := os.ReadDir(filepath.Join(dir, "sessions", folder.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if info, err := file.Info(); err == nil {
				size += info.Size()
			}
		}
	}
	index, err := record.ReadIndex(dir)
	if err != nil || len(index.Sessions) < 3 || len(index.Sessions) != len(folders) {
		t.Fatalf("%v: %d sessions in %d folders", err, len(index.Sessions), len(folders))
	}
	if size > limit || size < limit/4 {
		t.Errorf("the sessions take %d bytes in %d folders, want at most %d", size, len(folders), limit)
	}
	last := -1
	for i, s := range index.Sessions {
		if i > 0 && !s.Began.Equal(&index.Sessions[i-1].Until) {
			t.Errorf("between %v and %v nothing was recorded", index.Sessions[i-1].Until, s.Began)
		}
		for _, at := range []time.Time{s.Began.Time, s.Began.Add(s.Until.Sub(s.Began.Time) / 2)} {
			set, err := record.At(dir, at)
			if err != nil {
				t.Fatal(err)
			}
			var round int
			if _, err := fmt.Sscan(set.Nodes[0].Spec.Taints[0].Value, &round); err != nil || round < last || round < 100 || len(set.Pods) != 10 {
				t.Errorf("session %d at %v: round %d after %d, %d pods, %v", i, at, round, last, len(set.Pods), err)
			}
			last = round
		}
	}
	if set, err := record.At(dir, index.Sessions[len(index.Sessions)-1].Until.Time); err != nil || set.Nodes[0].Spec.Taints[0].Value != fmt.Sprint(rounds-1) {
		t.Errorf("at the end: %v, %+v", err, set)
	}
	_, err = record.At(dir, index.Sessions[0].Began.Add(-time.Millisecond))
	if err == nil || !strings.Contains(err.Error(), "nothing was recorded") || strings.Count(err.Error(), " to ") != 1 {
		t.Errorf("a time that was forgotten: %v", err)
	}
}

// TestASessionWithoutSomeOfItsFilesIsRefused verifies that an incomplete session cannot be shown.
func TestASessionWithoutSomeOfItsFilesIsRefused(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	api.Set("nodes", node("node-1"))
	during(t, api, dir, 0, func(changes func() int) {
		changes()
		changes()
		api.Set("pods", pod("p", "node-1"))
		until(changes, 1)
	})
	index, err := record.ReadIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, index.Sessions[0].Folder)
	for _, name := range []string{"nodes.json", "changes-000001.jsonl"} {
		whole, lost := filepath.Join(folder, name), filepath.Join(dir, "lost")
		if err := os.Rename(whole, lost); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, name)
		if err := os.Rename(lost, whole); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := record.At(dir, index.Sessions[0].Until.Time); err != nil {
		t.Errorf("with all its files: %v", err)
	}
}

// refused verifies that the error names the missing part of a recording.
func refused(t *testing.T, dir, name string) {
	t.Helper()
	index, err := record.ReadIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = record.At(dir, index.Sessions[0].Until.Time)
	var played error
	for _, err := range record.Play(dir, index.Sessions) {
		played = errors.Join(played, err)
	}
	for _, err := range []error{err, played} {
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "missing") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestChangesThatAreMissingInTheMiddleAreAnError verifies that a missing file of changes is an
// error. Recordings of earlier builds have several files of changes per session.
func TestChangesThatAreMissingInTheMiddleAreAnError(t *testing.T) {
	change := fmt.Sprintf(`{"at":%q,"type":"Set","object":%s}`, recorded.Format(metav1.RFC3339Micro), good) + "\n"
	dir := crafted(t, "sessions/one", `{"kind":"List","items":[]}`, change)
	if err := os.WriteFile(filepath.Join(dir, "sessions", "one", "changes-000003.jsonl"), []byte(change), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "changes-000003.jsonl")
}

func TestOnceTakesTheObjectsAlone(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	api.PageLimit = 3
	for i := range 10 {
		api.Set("pods", pod(fmt.Sprintf("p-%d", i), ""))
	}
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Read([]string{dir}, nil, manifest.Options{Lenient: true})
	if err != nil || len(set.Pods) != 10 {
		t.Errorf("%v: %d pods", err, len(set.Pods))
	}
	index, err := record.ReadIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	if set, err := record.At(dir, index.Source.AsOf.Time); err != nil || len(set.Pods) != 10 {
		t.Errorf("at its own time: %v", err)
	}
}

// TestTheSecondInWhichASessionBeganIsCovered verifies that, for times in whole seconds, the second
// of a session's beginning belongs to the session, or to the previous session if that lasted until
// then.
func TestTheSecondInWhichASessionBeganIsCovered(t *testing.T) {
	at := func(second, milli int) metav1.MicroTime {
		return metav1.NewMicroTime(time.Date(2026, 11, 20, 10, 0, second, milli*1_000_000, time.UTC))
	}
	index := &record.Index{Sessions: []record.Session{
		{Began: at(10, 500), Until: at(20, 300), Missing: []string{"first"}},
		{Began: at(20, 300), Until: at(30, 0), Missing: []string{"second"}},
		{Began: at(40, 700), Until: at(50, 0), Missing: []string{"third"}},
	}}
	for moment, want := range map[metav1.MicroTime]string{
		at(9, 999): "", at(10, 0): "first", at(11, 0): "first", at(20, 0): "first", at(20, 299): "first", at(20, 300): "second", at(21, 0): "second",
		at(35, 0): "second", at(39, 999): "second", at(40, 0): "third", at(40, 500): "second", at(41, 0): "third", at(60, 0): "third",
	} {
		if got := strings.Join(index.MissingAt(moment.Time), ""); got != want {
			t.Errorf("at %s: %q, want %q", moment.Format("05.000"), got, want)
		}
	}
}

// TestARecordingSaysWhatItLacks verifies that an unreadable kind, which may have objects, makes the
// recording an incomplete cluster that lists it as missing. An unserved kind has no objects.
func TestARecordingSaysWhatItLacks(t *testing.T) {
	api := apitest.New(t)
	api.Refuse("daemonsets", http.StatusForbidden)
	api.Refuse("podgroups", http.StatusForbidden) // most clusters serve no pod groups, and roles omit them
	api.Refuse("resourceslices", http.StatusNotFound)
	watched, listed := t.TempDir(), t.TempDir()
	during(t, api, watched, 0, func(changes func() int) { changes() })
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: listed, Once: true}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{watched, listed} {
		index, err := record.ReadIndex(dir)
		if err != nil {
			t.Fatal(err)
		}
		at := index.Sessions[0].Began.Time
		if missing := index.MissingAt(at); len(missing) != 1 || !strings.HasPrefix(missing[0], "daemonsets: ") {
			t.Errorf("missing %q: want the daemonsets", missing)
		}
		if missing := index.MissingAt(at.Add(-time.Second)); missing != nil {
			t.Errorf("before it began: missing %q", missing)
		}
		if set, err := record.At(dir, at); err != nil || set.Whole {
			t.Errorf("the set is a whole cluster, %v", err)
		}
	}

	whole := t.TempDir()
	api.Refuse("daemonsets", http.StatusOK)
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: whole, Once: true}); err != nil {
		t.Fatal(err)
	}
	index, err := record.ReadIndex(whole)
	if err != nil {
		t.Fatal(err)
	}
	if set, err := record.At(whole, index.Sessions[0].Began.Time); err != nil || !set.Whole {
		t.Errorf("the set is no whole cluster, %v", err)
	}
}
