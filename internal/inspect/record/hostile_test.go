// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/node/pressure"
)

// TestAFolderWithOtherFilesIsRefused verifies that a folder with contents other than a recording
// stays unchanged.
func TestAFolderWithOtherFilesIsRefused(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	mine := filepath.Join(dir, "pods.json")
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true})
	if err == nil || !strings.Contains(err.Error(), "pods.json") {
		t.Errorf("not refused: %v", err)
	}
	if text, _ := os.ReadFile(mine); string(text) != "mine" {
		t.Errorf("the file says %q now", text)
	}
}

// TestNothingIsWrittenBeforeTheClusterIsListed verifies that a cluster that cannot be reached or
// listed leaves neither a folder nor a lock in one.
func TestNothingIsWrittenBeforeTheClusterIsListed(t *testing.T) {
	down, closed := apitest.New(t), apitest.New(t)
	down.Config.Host = "http://127.0.0.1:1"
	closed.Refuse("nodes", http.StatusForbidden)
	for what, api := range map[string]*apitest.Server{"unreachable": down, "forbidden": closed} {
		for _, once := range []bool{true, false} {
			dir, empty := filepath.Join(t.TempDir(), "monday"), t.TempDir()
			for _, dir := range []string{dir, empty} {
				if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: once}); err == nil {
					t.Errorf("%s: no error", what)
				}
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s, once %t: the folder is there: %v", what, once, err)
			}
			if left, err := os.ReadDir(empty); len(left) > 0 {
				t.Errorf("%s, once %t: left in the folder: %v, %v", what, once, left, err)
			}
		}
	}
}

// TestAnEarlyEndKeepsTheObjects verifies that a recording ended before the cluster is listed keeps
// its earlier objects.
func TestAnEarlyEndKeepsTheObjects(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	api.Set("nodes", node("node-1"))
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	config := rest.CopyConfig(api.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/nodes") {
				cancel()
			}
			return next.RoundTrip(r)
		})
	})
	early, err := snapshot.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	err = record.Run(ctx, early, record.Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "before everything was listed") {
		t.Errorf("the second one: %v", err)
	}
	if text := everything(t, dir); !strings.Contains(text, "node-1") {
		t.Error("the objects are gone")
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestADurationBeginsWithTheRecording verifies that a short recording waits until everything is
// listed: the time that this takes depends on the cluster.
func TestADurationBeginsWithTheRecording(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	api.Set("nodes", node("node-1"))
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, For: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	if text := everything(t, dir); !strings.Contains(text, "node-1") {
		t.Error("the recording lacks its node")
	}
}

// TestARecordingThatWasBrokenOffGoesOn verifies that a recording can continue in a folder in which
// a recording was aborted before its first write.
func TestARecordingThatWasBrokenOffGoesOn(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sessions", "20260101T000000.000Z"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
		t.Error(err)
	}
}

// TestARecordingWithoutItsIndexGoesOn verifies that a recording killed between writing its objects
// and its index can continue, and that its unreferenced session does not take up space.
func TestARecordingWithoutItsIndexGoesOn(t *testing.T) {
	api, dir := apitest.New(t), ""
	api.Set("nodes", node("node-1"))
	api.Set("pods", pod("a", "node-1"))
	for _, gone := range [][]string{{record.IndexFile}, {record.IndexFile, "pods.json", "lock"}} {
		dir = t.TempDir()
		if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
			t.Fatal(err)
		}
		for _, name := range gone {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		api.Delete(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
		if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
			t.Fatalf("without %v: %v", gone, err)
		}
		index, err := record.ReadIndex(dir)
		if err != nil {
			t.Fatal(err)
		}
		folders, err := os.ReadDir(filepath.Join(dir, "sessions"))
		if err != nil || len(folders) != 1 || len(index.Sessions) != 1 {
			t.Errorf("without %v: %d folders of %d sessions, %v", gone, len(folders), len(index.Sessions), err)
		}
		if text := everything(t, dir); strings.Contains(text, `"a"`) || !strings.Contains(text, "node-1") {
			t.Errorf("without %v: %s", gone, text)
		}
		api.Set("pods", pod("a", "node-1"))
	}
	// A file without a counterpart in a session belongs to the user.
	if err := os.Remove(filepath.Join(dir, record.IndexFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "deployments.json"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err == nil || !strings.Contains(err.Error(), "deployments.json") {
		t.Errorf("somebody's file: %v", err)
	}
}

// TestSessionsWhoseIndexIsLostStay verifies that a long recording with a lost index is not mistaken
// for a killed one: its sessions stay.
func TestSessionsWhoseIndexIsLostStay(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	api.Set("nodes", node("node-1"))
	for range 2 {
		if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, record.IndexFile)); err != nil {
		t.Fatal(err)
	}
	err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true})
	if err == nil || !strings.Contains(err.Error(), "2 sessions of a recording, and no "+record.IndexFile) {
		t.Errorf("not refused: %v", err)
	}
	if folders, err := os.ReadDir(filepath.Join(dir, "sessions")); err != nil || len(folders) != 2 {
		t.Errorf("%d sessions are left, %v", len(folders), err)
	}
}

func TestTwoDoNotRecordIntoOneFolder(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	during(t, api, dir, 0, func(changes func() int) {
		changes()
		err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true})
		if err == nil || !strings.Contains(err.Error(), "another berth record") {
			t.Errorf("the second one: %v", err)
		}
	})
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

// TestMessagesAndAnnotationsAreLeftOut verifies that recordings omit potentially confidential data:
// containers' termination messages, and annotations that do not affect decisions.
func TestMessagesAndAnnotationsAreLeftOut(t *testing.T) {
	api, dir := apitest.New(t), t.TempDir()
	p := pod("a", "node-1")
	p["metadata"].(map[string]any)["annotations"] = map[string]any{"team/token": "hunter2", v1.MirrorPodAnnotationKey: "x",
		batchv1.JobIndexFailureCountAnnotation: "1", "berth.dev/rebalance": "never", pressure.AnnotationUses: "memory=1Gi"}
	ended := []any{map[string]any{"name": "init", "state": map[string]any{"terminated": map[string]any{"message": "hunter2"}},
		"lastState": map[string]any{"terminated": map[string]any{"message": "hunter2"}}}}
	p["status"] = map[string]any{"initContainerStatuses": ended, "containerStatuses": ended, "ephemeralContainerStatuses": ended}
	api.Set("pods", p)
	template := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"team/token": "hunter2"}}, "spec": p["spec"]}
	api.Set("deployments", apitest.Object{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web", "namespace": "default"}, "spec": map[string]any{"template": template},
	})
	api.Set("replicasets", apitest.Object{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": map[string]any{
		"name": "web-1", "namespace": "default", "annotations": map[string]any{"deployment.kubernetes.io/max-replicas": "5"}}})
	api.Set("leases", apitest.Object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{
		"name": "kube-scheduler", "namespace": "kube-system", "annotations": map[string]any{config.InUseAnnotation: "{}"}}})
	if err := record.Run(t.Context(), client(t, api), record.Options{Dir: dir, Once: true}); err != nil {
		t.Fatal(err)
	}
	text := everything(t, dir)
	if strings.Contains(text, "hunter2") {
		t.Errorf("what is confidential was kept:\n%s", text)
	}
	for key, why := range map[string]string{
		v1.MirrorPodAnnotationKey:               "of static pods, which a drain asks for",
		config.InUseAnnotation:                  "by which a scheduler tells what it decides by",
		batchv1.JobIndexFailureCountAnnotation:  "that counts an index's failures, which its Job asks for",
		"berth.dev/rebalance":                   "that keeps a pod where it is",
		pressure.AnnotationUses:                 "of what a pod uses, which a forecast of pressure asks for",
		"deployment.kubernetes.io/max-replicas": "by which a Deployment that is scaled in a rollout shares its pods",
	} {
		if !strings.Contains(text, key) {
			t.Errorf("the annotation is gone %s", why)
		}
	}
}

var recorded = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// crafted writes a recording of foreign origin.
func crafted(t testing.TB, folder, pods, changes string) string {
	t.Helper()
	dir := t.TempDir()
	index, err := json.Marshal(map[string]any{
		"apiVersion": "berth.dev/v1alpha1", "kind": record.Kind, "sessions": []any{map[string]any{"folder": folder, "began": metav1.NewMicroTime(recorded), "until": metav1.NewMicroTime(recorded.Add(time.Hour))}},
	})
	if err != nil {
		t.Fatal(err)
	}
	session := filepath.Join(dir, "sessions", "one")
	if err := os.MkdirAll(session, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(dir, record.IndexFile): string(index), filepath.Join(session, "pods.json"): pods, filepath.Join(session, "changes-000001.jsonl"): changes,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestASessionOutsideOfTheRecordingIsNotRead(t *testing.T) {
	for _, folder := range []string{"../elsewhere", "/etc", "sessions/../../x"} {
		dir := crafted(t, folder, "", "")
		if _, err := record.At(dir, recorded); err == nil || !strings.Contains(err.Error(), "must be within") {
			t.Errorf("%s: %v", folder, err)
		}
		if index, err := record.ReadIndex(dir); err == nil {
			t.Errorf("%s: the dashboard would play %+v", folder, index.Sessions)
		}
	}
}

// TestWhatIsLostOfARecordingIsAnError verifies that a lost session is not mistaken for an empty
// cluster, and that unreadable lines are identified.
func TestWhatIsLostOfARecordingIsAnError(t *testing.T) {
	for what, c := range map[string]struct{ lost, changes, want string }{
		"a session": {"sessions/one", "", "one: the session that began at 2026-03-01T12:00:00Z is not there"},
		"a line":    {"", "{}\n{\"at\n", "changes-000001.jsonl: line 2: "},
	} {
		dir := crafted(t, "sessions/one", `{"kind":"List","items":[]}`, strings.Replace(c.changes, "{}", fmt.Sprintf(`{"at":%q,"type":"Set","object":%s}`, recorded.Format(metav1.RFC3339Micro), good), 1))
		if c.lost != "" {
			if err := os.RemoveAll(filepath.Join(dir, c.lost)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := record.At(dir, recorded.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		index, err := record.ReadIndex(dir)
		if err != nil {
			t.Fatal(err)
		}
		var played error
		for _, err := range record.Play(dir, index.Sessions) {
			played = errors.Join(played, err)
		}
		if played == nil || !strings.Contains(played.Error(), c.want) {
			t.Errorf("%s: played: %v, want %q", what, played, c.want)
		}
	}
}

const (
	status = `{"apiVersion":"v1","kind":"Status","metadata":{}}`
	bad    = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{}}`
	good   = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"-1"}}}]}}`
)

// FuzzAt reads recordings of foreign origin: for any content, the reader returns a result or an
// error, and does not panic.
func FuzzAt(f *testing.F) {
	line := func(kind, object string) string {
		return fmt.Sprintf(`{"at":%q,"type":%q,"object":%s}`, recorded.Format(metav1.RFC3339Micro), kind, object) + "\n"
	}
	for _, object := range []string{status, bad, good, `{"apiVersion":"v1","kind":"List","items":[]}`, `null`, `[]`, `{"kind":7}`} {
		f.Add(`{"kind":"List","items":[`+object+`]}`, line("Set", object))
		f.Add(`{"kind":"List","items":[]}`, line("Delete", object))
	}
	f.Fuzz(func(t *testing.T, pods, changes string) {
		dir := crafted(t, "sessions/one", pods, changes)
		index, err := record.ReadIndex(dir)
		if err != nil {
			t.Fatal(err)
		}
		for step, err := range record.Play(dir, index.Sessions) {
			if err != nil {
				break
			}
			if step.Object != nil {
				step.Object.GetName()
			}
		}
		set, err := record.At(dir, recorded)
		if err != nil {
			return
		}
		w, err := simulate.Open(set, simulate.Options{Now: recorded})
		if err != nil {
			return
		}
		w.Settle()
	})
}
