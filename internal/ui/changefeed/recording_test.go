// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/ui/changefeed"
	"github.com/berth-k8s/berth/internal/ui/model"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func stamp(seconds int) string {
	return noon.Add(time.Duration(seconds) * time.Second).Format("2006-01-02T15:04:05.000000Z")
}

func nodeText(name, taints string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"uid":%q},"spec":{"taints":[%s]},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, name, name, taints)
}

func podText(name, on, conditions string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":%q,"uid":%q},"spec":{"nodeName":%q,"containers":[]},"status":{"conditions":[%s]}}`, name, name, on, conditions)
}

// recording makes a folder with two sessions: from 0 to 100 s and from 200 to 300 s. In the first a
// pod is evicted and another one created; the second has another node, and a pod pending to the
// end.
func recording(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := func(items ...string) string {
		return `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(items, ",\n") + "]}"
	}
	change := func(at int, kind, object string) string {
		line, _ := json.Marshal(map[string]any{"at": stamp(at), "type": kind, "object": json.RawMessage(object)})
		return string(line) + "\n"
	}
	write("recording.index", fmt.Sprintf(`{"apiVersion":"berth.dev/v1alpha1","kind":"Recording","sessions":[{"folder":"sessions/a","began":%q,"until":%q},{"folder":"sessions/b","began":%q,"until":%q}]}`,
		stamp(0), stamp(100), stamp(200), stamp(300)))
	write("sessions/a/nodes.json", list(nodeText("node-1", "")))
	write("sessions/a/pods.json", list(podText("web", "node-1", "")))
	write("sessions/a/changes-000001.jsonl", change(30, "Set", podText("web", "node-1", `{"type":"DisruptionTarget","status":"True","reason":"DeletionByTaintManager"}`))+
		change(31, "Delete", `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":"web"}}`)+
		change(40, "Set", podText("web-2", "", ""))+change(60, "Set", nodeText("node-1", `{"key":"late","effect":"NoSchedule"}`)))
	write("sessions/b/nodes.json", list(nodeText("node-2", "")))
	write("sessions/b/pods.json", list())
	write("sessions/b/changes-000001.jsonl", change(250, "Set", podText("web-3", "", "")))
	return dir
}

func TestARecordingIsShownAsItWasAtAnyTime(t *testing.T) {
	r, err := changefeed.Open(recording(t))
	if err != nil {
		t.Fatal(err)
	}
	describe := func(seconds int) string {
		t.Helper()
		state, err := r.State(noon.Add(time.Duration(seconds) * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%d pods, %d pending:", state.Summary.Pods, state.Summary.Pending)
		for _, n := range state.Nodes.Rows {
			text += fmt.Sprint(" ", n.Name, n.Taints)
		}
		return text
	}
	// A time must show the same state after moving forward, back and across the break.
	times := map[int]string{
		-50: "1 pods, 0 pending: node-1[]", 0: "1 pods, 0 pending: node-1[]", 30: "1 pods, 0 pending: node-1[]", 35: "0 pods, 0 pending: node-1[]", 45: "0 pods, 1 pending: node-1[]",
		60: "0 pods, 1 pending: node-1[late:NoSchedule]", 150: "0 pods, 1 pending: node-1[late:NoSchedule]", 200: "0 pods, 0 pending: node-2[]", 999: "0 pods, 1 pending: node-2[]",
	}
	for _, at := range []int{-50, 0, 30, 35, 45, 60, 150, 200, 999, 45, 200, 0, 150, 35, 30} {
		if got := describe(at); got != times[at] {
			t.Errorf("at %d s: %s, want %s", at, got, times[at])
		}
	}
	state, err := r.State(noon)
	if err != nil {
		t.Fatal(err)
	}
	evicted := slices.IndexFunc(state.History, func(m model.Moment) bool { return m[1] == 1 && m[0] == noon.Add(30*time.Second).UnixMilli() })
	pending := slices.IndexFunc(state.History, func(m model.Moment) bool { return m[4] == 1 && m[0] == noon.Add(40*time.Second).UnixMilli() })
	last := state.History[len(state.History)-1]
	if evicted < 0 || pending < 0 || last != (model.Moment{noon.Add(250 * time.Second).UnixMilli(), 0, 0, 0, 1}) {
		t.Errorf("what happens in all of the recording is known at its beginning: %v", state.History)
	}
}

func TestAFolderThatIsNoRecordingIsRefused(t *testing.T) {
	if _, err := changefeed.Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "recording.index") {
		t.Errorf("%v", err)
	}
	dir := recording(t)
	if err := os.WriteFile(filepath.Join(dir, "sessions/b/nodes.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := changefeed.Open(dir); err == nil || !strings.Contains(err.Error(), "sessions/b/nodes.json") {
		t.Errorf("one that is damaged: %v", err)
	}
}

// TestARecordingHasPodGroups verifies that a recording shows pod groups, and their trees after the
// first CompositePodGroup.
func TestARecordingHasPodGroups(t *testing.T) {
	dir := recording(t)
	group := `{"apiVersion":"scheduling.k8s.io/v1beta1","kind":"PodGroup","metadata":{"namespace":"default","name":"train"},"spec":{"parentCompositePodGroupName":"all","schedulingPolicy":{"gang":{"minCount":2}}}}`
	tree := `{"apiVersion":"scheduling.k8s.io/v1alpha3","kind":"CompositePodGroup","metadata":{"namespace":"default","name":"all"},"spec":{"schedulingPolicy":{"basic":{}}}}`
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":"a","uid":"a"},"spec":{"schedulingGroup":{"podGroupName":"train"},"containers":[]}}`
	for name, text := range map[string]string{
		"podgroups.json":       `{"apiVersion":"v1","kind":"List","items":[` + group + `]}`,
		"changes-000001.jsonl": fmt.Sprintf("{\"at\":%q,\"type\":\"Set\",\"object\":%s}\n{\"at\":%q,\"type\":\"Set\",\"object\":%s}\n", stamp(250), pod, stamp(265), tree),
	} {
		if err := os.WriteFile(filepath.Join(dir, "sessions/b", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := changefeed.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int]string{
		220: "[] []",
		260: "[{default/train   1 0 2 2 pods are needed at once; it has 1}] []",
		270: "[{default/train default/all default/all 1 0 2 2 pods are needed at once; it has 1}] " +
			"[{default/all  1 0 0 groups needed at once: 1; groups with all pods: 0}]",
	} {
		state, err := r.State(noon.Add(time.Duration(at) * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(state.Groups.Rows, state.Composites.Rows); got != want {
			t.Errorf("at %d s: %s, want %s", at, got, want)
		}
	}
}

// TestARecordingHasClaims verifies that the page lists pods with missing ResourceClaims after the
// first recorded claim.
func TestARecordingHasClaims(t *testing.T) {
	dir := recording(t)
	claim := `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"namespace":"default","name":%q}}`
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":"a","uid":"a"},"spec":{"schedulerName":"default-scheduler","containers":[],` +
		`"resourceClaims":[{"name":"device","resourceClaimName":"gpu"}]}}`
	change := func(at int, kind, object string) string {
		return fmt.Sprintf("{\"at\":%q,\"type\":%q,\"object\":%s}\n", stamp(at), kind, object)
	}
	gpu, other := fmt.Sprintf(claim, "gpu"), fmt.Sprintf(claim, "other")
	text := change(250, "Set", pod) + change(260, "Set", other) + change(270, "Set", gpu) + change(280, "Delete", gpu)
	if err := os.WriteFile(filepath.Join(dir, "sessions/b/changes-000001.jsonl"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := changefeed.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	const missing = `could not find ResourceClaim "default/gpu"`
	for at, want := range map[int]string{255: "", 265: missing, 275: "", 285: missing} {
		state, err := r.State(noon.Add(time.Duration(at) * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(state.Queue.Rows); strings.Contains(got, missing) != (want != "") {
			t.Errorf("at %d s: %s, want it to say %q", at, got, want)
		}
	}
}

// TestACraftedRecordingDoesNotEndTheProcess verifies that invalid nodes and pods and absurd amounts
// in a foreign recording are read or refused without ending the process.
func TestACraftedRecordingDoesNotEndTheProcess(t *testing.T) {
	for _, object := range []string{
		`{"apiVersion":"v1","kind":"Status","metadata":{}}`, `null`, `[]`, `{"kind":7}`, `{"apiVersion":"v1","kind":"List","items":[]}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`,
		`{"apiVersion":"v1","kind":"Pod"}`,
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"status":{"allocatable":{"cpu":"-1","memory":"9223372036854775807","pods":"1e30"}}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","uid":"p"},"spec":{"nodeName":"node-1","overhead":{"cpu":"9223372036854775807"},"containers":[{"resources":{"requests":{"cpu":"9223372036854775807","memory":"-5"}}}],` +
			`"tolerations":[{"operator":"Exists","effect":"NoExecute","tolerationSeconds":-9223372036854775808}]}}`,
	} {
		for _, file := range []string{"sessions/a/nodes.json", "sessions/a/pods.json", "sessions/a/changes-000001.jsonl"} {
			dir := recording(t)
			text := `{"kind":"List","items":[` + object + `]}`
			if strings.HasSuffix(file, ".jsonl") {
				text = fmt.Sprintf(`{"at":%q,"type":"Set","object":%s}`, stamp(1), object) + "\n" + fmt.Sprintf(`{"at":%q,"type":"Delete","object":%s}`, stamp(2), object) + "\n"
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := changefeed.Open(dir)
			if err != nil {
				continue
			}
			if _, err := r.State(noon.Add(50 * time.Second)); err != nil {
				t.Errorf("%s in %s: %v", object, file, err)
			}
		}
	}
}
