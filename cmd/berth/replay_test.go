// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/inspect/replay"
)

const replayedConfiguration = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// writeJournal records the placement of a pod, with the actions modified by edit.
func writeJournal(t *testing.T, edit func(string) string) (dir string) {
	return writeEvents(t, edit, aNode(), cycle.Listed{Kind: cycle.Nodes}, cycle.Led{}, seen(aPod("web-0", 0, "")), cycle.Tick{}, cycle.Answered{Ticket: 1})
}

// aNode returns a node with two CPUs.
func aNode() cycle.Event {
	amounts := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("2Gi"), v1.ResourcePods: resource.MustParse("9")}
	return cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Allocatable: amounts}}}
}

// aPod returns a pod requesting 1.5 CPUs.
func aPod(name string, priority int32, node string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{
		SchedulerName: v1.DefaultSchedulerName, Priority: &priority, NodeName: node, Containers: []v1.Container{{Name: "c", Image: "i",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m")}}}},
	}}
}

func seen(pod *v1.Pod) cycle.Event { return cycle.Seen{Kind: cycle.Pods, Object: pod} }

// writeEvents writes a journal with the given events, one second apart, after the start of the
// first list of nodes. edit modifies the core's actions.
func writeEvents(t *testing.T, edit func(string) string, events ...cycle.Event) (dir string) {
	t.Helper()
	dir = t.TempDir()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := journal.Header{Began: began, Seed: 3, Configuration: replayedConfiguration}
	profiles, err := replay.ProfilesOf(h, []byte(h.Configuration))
	if err != nil {
		t.Fatal(err)
	}
	core, err := journal.Core(h, profiles)
	if err != nil {
		t.Fatal(err)
	}
	w, err := journal.Create(dir, h, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	events = append([]cycle.Event{cycle.Follows{Kinds: []cycle.Kind{cycle.Nodes}}, cycle.Listing{Kind: cycle.Nodes}}, events...)
	for i, e := range events {
		at := began.Add(time.Duration(i) * time.Second)
		var said []cycle.Action
		for _, action := range core.Step(at, e) {
			said = append(said, edited{action, edit(action.String())})
		}
		w.Add(at, e, said)
	}
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// edited is an action with a modified text form.
type edited struct {
	cycle.Action
	text string
}

func (e edited) String() string { return e.text }

func runReplay(args ...string) (code int, out, errors string) {
	var stdout, stderr bytes.Buffer
	code = runCommand(context.Background(), append([]string{"berth", "replay"}, args...), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestReplayFindsTheSame(t *testing.T) {
	dir := writeJournal(t, func(s string) string { return s })
	code, out, errors := runReplay(dir)
	if code != 0 || !strings.Contains(out, "8 events, 3 actions, 1 pod bound in 7s") || !strings.Contains(out, "the same actions, byte for byte") {
		t.Errorf("exit code %d\n%s%s", code, out, errors)
	}
	code, out, _ = runReplay(dir, "--pod", "shop/web-0")
	want := `2026-01-01T00:00:05.000Z  appears, version ` + `
2026-01-01T00:00:06.000Z    attempt 1: n, the only feasible node of 1
2026-01-01T00:00:06.000Z      bind shop/web-0 to n #1
2026-01-01T00:00:07.000Z      announce shop/web-0 on n
`
	if code != 0 || out != want {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
	}
	if code, out, errors = runReplay(dir, "--pod", "web-0"); code != exitFailed || out != "" ||
		!strings.Contains(errors, "no record of default/web-0") {
		t.Errorf("of a pod that is not in it: exit code %d\n%s%s", code, out, errors)
	}
	if _, out, _ = runReplay(dir, "-o", "json"); !strings.Contains(out, `"lasted": "7s"`) {
		t.Errorf("as JSON:\n%s", out)
	}
}

// TestAStoryNamesWhoWasPreemptedForWhom verifies that each attempt has its result, and that pods
// referenced by UID are named.
func TestAStoryNamesWhoWasPreemptedForWhom(t *testing.T) {
	leaves := aPod("cart", 0, "n")
	leaves.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 1, 0, 0, 9, 0, time.UTC)}
	nominated := aPod("urgent", 9, "")
	nominated.Status.NominatedNodeName = "n"
	dir := writeEvents(t, func(s string) string { return s },
		aNode(), cycle.Listed{Kind: cycle.Nodes}, cycle.Led{}, seen(aPod("cart", 0, "n")), seen(aPod("urgent", 9, "")), cycle.Tick{},
		seen(nominated), seen(leaves), cycle.Answered{Ticket: 1}, cycle.Gone{Kind: cycle.Pods, Object: leaves}, cycle.Tick{})
	_, out, errors := runReplay(dir, "--pod", "shop/urgent")
	for _, want := range []string{
		"  appears, version",
		"    attempt 1: 0/1 nodes are available: 1 Insufficient cpu. preemption: found a potential placement for pod on node n, preempting 1 victims Preempts on n: shop/cart\n",
		"      remove shop/cart (cart) for shop/urgent #1\n",
		"  nominated to n, version",
		": n, the nominated node\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the preemptor's story does not say %q:\n%s%s", want, out, errors)
		}
	}
	_, out, _ = runReplay(dir, "--pod", "shop/cart")
	for _, want := range []string{"  appears on n, version", "      remove shop/cart (cart) for shop/urgent #1\n", "  deletion requested, version", "  gone\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the victim's story does not say %q:\n%s", want, out)
		}
	}
}

func TestReplayTellsWhereItParts(t *testing.T) {
	dir := writeJournal(t, func(s string) string { return strings.Replace(s, "to n ", "to m ", 1) })
	code, out, _ := runReplay(dir)
	for _, want := range []string{"diverges at event 6, 2026-01-01T00:00:06Z", "recorded: ready bind shop/web-0 to m #1", "replayed: ready bind shop/web-0 to n #1"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("does not say %q:\n%s", want, out)
		}
	}
	if code != print.ExitHeld {
		t.Errorf("exit code %d, want %d", code, print.ExitHeld)
	}
}

// threeFiles writes a scheduler journal of three files, each one minute long.
func threeFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := journal.Header{Began: at, Seed: 3, Configuration: replayedConfiguration}
	w, err := journal.Create(dir, h, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var core *cycle.Core
	events := []cycle.Event{cycle.Follows{Kinds: []cycle.Kind{cycle.Nodes}}, cycle.Listing{Kind: cycle.Nodes}, aNode(), cycle.Listed{Kind: cycle.Nodes}, cycle.Led{}}
	for i := range 3 {
		add := w.Add
		if i > 0 {
			at, add = at.Add(time.Minute), w.AddNext
			events = stateOf(t, w.Prepare(t.Context(), at, h.Seed))
		}
		profiles, err := replay.ProfilesOf(h, []byte(h.Configuration))
		if err != nil {
			t.Fatal(err)
		}
		if core, err = journal.Core(h, profiles); err != nil {
			t.Fatal(err)
		}
		for _, e := range append(events, seen(aPod(fmt.Sprint("web-", i), 0, ""))) {
			add(at, e, core.Step(at, e))
		}
		if i > 0 {
			w.Turn()
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// stateOf reads a state to its end.
func stateOf(t *testing.T, state *journal.State) (events []cycle.Event) {
	t.Helper()
	for {
		switch e, ready, err := state.Next(); {
		case err != nil:
			t.Fatal(err)
		case !ready:
			runtime.Gosched()
		case e == nil:
			return events
		default:
			events = append(events, e)
		}
	}
}

// TestReplayTellsOfLostRecords verifies that records dropped because of a slow disk are reported
// like missing records.
func TestReplayTellsOfLostRecords(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w, err := journal.Create(dir, journal.Header{Began: at, Lost: 7, Configuration: replayedConfiguration}, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Add(at, cycle.Tick{}, nil)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	const says = "7 events were lost, since the disk did not keep up"
	for _, args := range [][]string{{dir}, {dir, "--config", file(t, "same.yaml", replayedConfiguration)}} {
		if code, out, errors := runReplay(args...); code != 0 || !strings.Contains(out, says) {
			t.Errorf("%q: exit code %d\n%s%s", args, code, out, errors)
		}
	}
	if _, out, _ := runReplay(dir, "--pod", "shop/web-0"); !strings.Contains(out, says) {
		t.Errorf("of a pod:\n%s", out)
	}
	if _, out, _ := runReplay(dir, "-o", "json"); !strings.Contains(out, `"lost": 7`) {
		t.Errorf("as JSON:\n%s", out)
	}
}

// TestReplayTellsOfAMissingFile verifies that a missing file is reported if older files exist.
// Otherwise it may have been deleted to limit the size of the journal.
func TestReplayTellsOfAMissingFile(t *testing.T) {
	for _, dir := range []string{threeFiles(t), threeControllerFiles(t)} {
		files, err := records.Files(dir)
		if err != nil || len(files) != 3 {
			t.Fatalf("%q, %v", files, err)
		}
		says := func(want bool, args ...string) {
			t.Helper()
			code, out, errors := runReplay(append(args, dir)...)
			if code != 0 || strings.Contains(out, filepath.Base(files[1])+" is missing") != want {
				t.Errorf("%q: exit code %d\n%s%s", args, code, out, errors)
			}
		}
		says(false)
		if err := os.Remove(files[1]); err != nil {
			t.Fatal(err)
		}
		says(true)
		says(true, "--pod", "shop/web-2")
		if _, out, _ := runReplay(dir, "-o", "json"); strings.Count(out, `"missing": "`+filepath.Base(files[1])+`"`) != 1 {
			t.Errorf("as JSON:\n%s", out)
		}
		if err := os.Remove(files[0]); err != nil {
			t.Fatal(err)
		}
		says(false)
	}
	dir := threeFiles(t)
	files, err := records.Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(files[1]); err != nil {
		t.Fatal(err)
	}
	code, out, errors := runReplay(dir, "--config", file(t, "same.yaml", replayedConfiguration))
	if code != 0 || !strings.Contains(out, filepath.Base(files[1])+" is missing") {
		t.Errorf("under a configuration: exit code %d\n%s%s", code, out, errors)
	}
}

func TestReplayOfWhatIsNoJournal(t *testing.T) {
	for args, want := range map[string]string{
		t.TempDir():                        "no journal there",
		filepath.Join(t.TempDir(), "none"): "no such file",
		"replay_test.go":                   "not a journal",
	} {
		if code, _, errors := runReplay(args); code != exitFailed || !strings.Contains(errors, want) {
			t.Errorf("%s: exit code %d, %s", args, code, errors)
		}
	}
}

// TestReplayUnderAnotherConfiguration verifies that a placed pod is pending under a configuration
// that serves no recorded pod.
func TestReplayUnderAnotherConfiguration(t *testing.T) {
	dir := writeJournal(t, func(s string) string { return s })
	same := file(t, "same.yaml", replayedConfiguration)
	code, out, errors := runReplay(dir, "--config", same, "--fail-on", "pending,preempted,longer,elsewhere")
	if code != 0 || !strings.Contains(out, "placed elsewhere: none") {
		t.Errorf("exit code %d\n%s%s", code, out, errors)
	}
	none := file(t, "none.yaml", replayedConfiguration+"profiles: [{schedulerName: another}]\n")
	code, out, errors = runReplay(dir, "--config", none, "--fail-on", "pending")
	if code != print.ExitHeld || !strings.Contains(out, "pending now: 1") || !strings.Contains(out, `serves the scheduler "default-scheduler", of 1 pod.`) {
		t.Errorf("exit code %d\n%s%s", code, out, errors)
	}
	picky := file(t, "picky.yaml", replayedConfiguration+"profiles: [{pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "+
		"{nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}}]}]\n")
	code, out, errors = runReplay(dir, "--config", picky, "--fail-on", "pending")
	if code != print.ExitHeld || !strings.Contains(out, "shop/web-0") || !strings.Contains(errors, "--fail-on pending: condition met") {
		t.Errorf("exit code %d\n%s%s", code, out, errors)
	}
	for _, wrong := range [][]string{{"--fail-on", "pending"}, {"--config", same, "--fail-on", "rain"}, {"--config", same, "--pod", "x"}} {
		if code, _, _ := runReplay(append([]string{dir}, wrong...)...); code != 2 {
			t.Errorf("%v: exit code %d", wrong, code)
		}
	}
}
