// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// event holds the fields on which the page and the code must agree.
type event struct{ part, reason, kind string }

func (e event) String() string { return fmt.Sprintf("%s: %s (%s)", e.part, e.reason, e.kind) }

// parts maps folders to the commands emitting their events.
var parts = map[string]string{
	"internal/scheduler": "berth scheduler", "scheduler": "berth scheduler", "internal/engine/cycle": "berth scheduler", "internal/controller": "berth controller", "internal/inspect/exchange": "berth controller",
	"internal/node/simnodes": "berth nodes",
}

// carriers lists structs that pass a reason on to the code that writes the event, by the expression
// that reads it there.
var carriers = map[string]carrier{
	"internal/controller/nodehealth/nodecontroller: a.Reason": {"internal/controller/nodehealth", "Record", "Reason"},
	"internal/node/simnodes/simkubelet: r.Reason":             {"internal/node/admit", "Refusal", "Reason"},
}

// onlyAMachine lists pod rejections of real machines; simulated nodes use the rest of package
// admit.
var onlyAMachine = []string{"NodeName"}

// TestEventsPageIsComplete verifies that the page and the code have the same events.
func TestEventsPageIsComplete(t *testing.T) {
	code := eventsOfCode(t, root, carriers)
	code[leaderElection] = "client-go's leader election"
	for _, reason := range onlyAMachine {
		delete(code, event{parts["internal/node/simnodes"], reason, v1.EventTypeWarning})
	}
	page := eventsOfPage(t)
	for _, e := range slices.SortedFunc(maps.Keys(code), compareEvents) {
		if page[e] == 0 {
			t.Errorf("docs/reference/events.md does not have %v, written at %s", e, code[e])
		}
	}
	for _, e := range slices.SortedFunc(maps.Keys(page), compareEvents) {
		if code[e] == "" {
			t.Errorf("docs/reference/events.md:%d: nothing writes %v", page[e], e)
		}
	}
}

func compareEvents(a, b event) int { return cmp.Compare(a.String(), b.String()) }

// leaderElection is written by client-go, through the scheduler's recorder.
var leaderElection = event{"berth scheduler", "LeaderElection", v1.EventTypeNormal}

type recorded struct{ events []event }

func (r *recorded) Eventf(_ runtime.Object, kind, reason, _ string, _ ...any) {
	r.events = append(r.events, event{leaderElection.part, reason, kind})
}

func TestLeaderElectionWritesItsEvent(t *testing.T) {
	r := &recorded{}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler"},
		Client:     fake.NewClientset().CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: "me", EventRecorder: r},
	}
	if err := lock.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
		t.Fatal(err)
	}
	lock.RecordEvent("became leader")
	if len(r.events) != 1 || r.events[0] != leaderElection {
		t.Errorf("%v, want %v", r.events, leaderElection)
	}
}

// eventsOfPage reads the tables: the reason in the first column, the type in the second.
func eventsOfPage(t *testing.T) map[event]int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "reference", "events.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[event]int{}
	part := ""
	for i, line := range strings.Split(string(text), "\n") {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			part = title
		}
		if cells := cellsOf(line); len(cells) > 1 && strings.HasPrefix(cells[0], "`") {
			found[event{part, strings.Trim(cells[0], "`"), cells[1]}] = i + 1
		}
	}
	return found
}

// cellsOf returns the cells of a table row.
func cellsOf(line string) []string {
	if !strings.HasPrefix(line, "|") {
		return nil
	}
	cells := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, "\x00"), "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|"))
	}
	return cells
}

// TestEventsAreFoundHoweverTheyAreWritten verifies that the search finds the reasons of events in
// all forms of code that occur in the tree.
func TestEventsAreFoundHoweverTheyAreWritten(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("agent/a.go", `package agent
import (
	v1 "k8s.io/api/core/v1"
	"github.com/berth-k8s/berth/agent/words"
)
const constant = "Constant"
type refusal struct{ message, reason string }
func (a *A) f(r *refusal, bad bool) {
	a.recorder.Event(a.node, v1.EventTypeNormal, "Plain", "text")
	a.recorder.Event(a.node, v1.EventTypeNormal, constant, "text")
	a.recorder.Event(a.node, v1.EventTypeNormal, words.Other, "text")
	a.forward("Forwarded", "text")
	a.forward(map[bool]string{true: "Yes", false: "No"}[bad], "text")
	reason, text := r.reason, ""
	if bad {
		reason, text = "Local", "x"
	}
	a.recorder.Event(a.node, v1.EventTypeWarning, reason, text)
	_ = v1.Event{Type: v1.EventTypeNormal, Reason: "Literal"}
	if bad = kind == v1.EventTypeWarning; bad {
		return
	}
}
func (a *A) forward(reason, message string) { a.recorder.Event(a.node, v1.EventTypeWarning, reason, message) }
func refuse(name string) *refusal {
	if name == "" {
		return &refusal{reason: "Keyed"}
	}
	return &refusal{"why", "OutOf" + string(name)}
}
`)
	write("agent/words/w.go", "package words\nconst Other = \"Imported\"\n")
	write("agent/a_test.go", "package agent\nfunc g() { a.Event(v1.EventTypeNormal, \"InATest\", \"\") }\n")
	write("other/go.mod", "module other\n")
	write("other/o.go", "package other\nfunc g() { a.Event(v1.EventTypeNormal, \"OfAnotherModule\", \"\") }\n")
	found := eventsOfCode(t, dir, map[string]carrier{"agent: r.reason": {"agent", "refusal", "reason"}})
	var got []string
	for e := range found {
		got = append(got, e.reason+" "+e.kind)
	}
	slices.Sort(got)
	want := []string{"Constant Normal", "Forwarded Warning", "Imported Normal", "Keyed Warning", "Literal Normal", "Local Warning", "No Warning", "OutOf… Warning", "Plain Normal", "Yes Warning"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}

	write("agent/b.go", "package agent\nfunc g(x thing) { a.Event(v1.EventTypeNormal, x.secret(), \"\") }\n")
	if _, errs := searchEvents(dir, nil); !strings.Contains(fmt.Sprint(errs), "b.go:2:47: not understood: x.secret()") {
		t.Errorf("an expression that says nothing is passed over: %v", errs)
	}
}

func eventsOfCode(t *testing.T, root string, carriers map[string]carrier) map[event]string {
	t.Helper()
	found, errs := searchEvents(root, carriers)
	for _, err := range errs {
		t.Error(err)
	}
	return found
}
