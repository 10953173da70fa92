// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// eventTypes returns the names of the event types in the type switch of package cycle.
func eventTypes(t *testing.T) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../cycle/step.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}

	found := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSwitchStmt); ok {
			for _, clause := range s.Body.List {
				for _, name := range clause.(*ast.CaseClause).List {
					found[name.(*ast.Ident).Name] = true
				}
			}
		}
		return true
	})
	return found
}

// TestEveryTypeOfEventCanBeWritten verifies that everyEvent contains every type of event, so that
// TestEveryEventIsReadAsItWasWritten writes every type. An unwritable event would end the journal.
func TestEveryTypeOfEventCanBeWritten(t *testing.T) {
	missing := eventTypes(t)
	if len(missing) < 17 {
		t.Fatalf("%d types of events are found", len(missing))
	}
	for _, e := range everyEvent {
		delete(missing, reflect.TypeOf(e).Name())
	}
	if len(missing) > 0 {
		t.Errorf("events that are not tried: %q", slices.Sorted(maps.Keys(missing)))
	}
}

// TestEventsOfCustomResourcesAreReplayed verifies that an event of a resource watched by an
// out-of-tree plugin wakes a pod, also in a replay, and that no content of the resource is written
// to the journal.
func TestEventsOfCustomResourcesAreReplayed(t *testing.T) {
	dir, now := t.TempDir(), began
	h := Header{Began: began, Seed: 1, Outside: true}
	w, err := Create(dir, h, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	core, err := Core(h, []cycle.Profile{{Profile: plugins.Default()}})
	if err != nil {
		t.Fatal(err)
	}
	attempts := 0
	step := func(e cycle.Event) {
		now = now.Add(10 * time.Second) // longer than the first back-offs
		actions := core.Step(now, e)
		w.Add(now, e, actions)
		attempts += len(core.Decided())
	}

	// The plugin has rejected the pod; it is unknown which events can help.
	kinds := []cycle.Kind{cycle.Nodes, cycle.Pods}
	step(cycle.Follows{Kinds: kinds})
	for _, kind := range kinds {
		step(cycle.Listing{Kind: kind})
		step(cycle.Listed{Kind: kind})
	}
	step(cycle.Led{})
	step(cycle.Seen{Kind: cycle.Pods, Object: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", UID: "p"},
		Spec:       v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}})
	step(cycle.Resumed{Pods: []queue.Saved{{UID: "p", Place: queue.Waiting, Progress: queue.Progress{Rejectors: []string{"Foreign"}, Returned: now}}}})
	step(cycle.Tick{})
	if attempts != 0 {
		t.Fatalf("%d attempts before the event", attempts)
	}

	foo := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"token": aSecret}}}
	const resource = "foos.v1.example.com"
	step(cycle.Happened{Event: &queue.Event{Resource: resource, Action: queue.Update, Label: resource + "/Update", Old: foo, New: foo}})
	step(cycle.Tick{})
	if attempts != 1 {
		t.Fatalf("%d attempts after the event", attempts)
	}
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}

	data := onlyFile(t, dir)
	if bytes.Contains(data, []byte(aSecret)) {
		t.Error("the custom resource was written")
	}
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	again := 0
	result, err := Replay(r, Options{Profiles: defaults, Each: func(_ int, _ Record, core *cycle.Core) { again += len(core.Decided()) }})
	if err != nil || result.Parting != nil || result.Cut || again != 1 {
		t.Errorf("%d attempts, %+v: %v", again, result, err)
	}
}
