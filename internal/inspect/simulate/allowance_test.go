// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// allowed opens a world with two nodes, a workload and a DaemonSet.
func allowed(t *testing.T, a simulate.Allowance) *simulate.World {
	t.Helper()
	text := ""
	for i := range 2 {
		text += fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: node-%d}\nstatus: {allocatable: {cpu: 100, memory: 100Gi, pods: 100}}\n---\n", i+1)
	}
	const template = "selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n---\n"
	text += "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 3, " + template
	text += "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: agent}\nspec: {" + template
	set, err := manifest.Read([]string{"-"}, strings.NewReader(text), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	set.Expand(1)
	w, err := simulate.Open(set, simulate.Options{Allowance: a, Read: func([]string, *manifest.Set) (*manifest.Set, error) {
		return manifest.Read([]string{"-"}, strings.NewReader("apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: more}\nspec: {"+template), manifest.Options{})
	}})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWhatIsAddedIsBoundedByWhateverWayItComes(t *testing.T) {
	for _, c := range []struct {
		name       string
		allowance  simulate.Allowance
		operations []simulate.Operation
		says       string
	}{
		{"within", simulate.Allowance{Pods: 4, Nodes: 1}, []simulate.Operation{{AddNodes: &simulate.AddNodes{Count: 1, Like: "node-1"}}, {Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 6}}}, ""},
		{"nodes", simulate.Allowance{Nodes: 1}, []simulate.Operation{{AddNodes: &simulate.AddNodes{Count: 1, Like: "node-1"}}, {AddNodes: &simulate.AddNodes{Count: 1, Like: "node-1"}}}, "more than 1 nodes"},
		{"daemons on new nodes", simulate.Allowance{Pods: 4}, []simulate.Operation{{AddNodes: &simulate.AddNodes{Count: 5, Like: "node-1"}}}, "more than 4 pods"},
		{"replicas", simulate.Allowance{Pods: 4}, []simulate.Operation{{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 8}}}, "more than 4 pods"},
		{"copies", simulate.Allowance{Pods: 4}, []simulate.Operation{{AddPods: &simulate.AddPods{Count: 5, Like: "deployment/web"}}}, "more than 4 pods"},
		{"a manifest", simulate.Allowance{Pods: 1}, []simulate.Operation{{Deploy: simulate.Files{"-"}}}, "more than 1 pods"},
		{"one after the other", simulate.Allowance{Pods: 4}, []simulate.Operation{{Deploy: simulate.Files{"-"}}, {AddPods: &simulate.AddPods{Count: 3, Like: "deployment/web"}}}, "more than 4 pods"},
	} {
		w := allowed(t, c.allowance)
		var err error
		for i := range c.operations {
			if _, err = w.Do(&c.operations[i]); err != nil {
				break
			}
		}
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	done, err := allowed(t, simulate.Allowance{Pods: 4}).Do(&simulate.Operation{AddPods: &simulate.AddPods{Max: true, Like: "deployment/web"}})
	if err != nil || done.Fill.Placed != 4 || !strings.Contains(done.Fill.Stops, "not tried beyond 4 pods") {
		t.Errorf("as many as fit, of four that may come: %+v, %v", done, err)
	}
}

func TestAWorldThatIsStoppedDecidesNothingMore(t *testing.T) {
	enough := errors.New("enough")
	asked := 0
	w := allowed(t, simulate.Allowance{Stop: func() error {
		if asked++; asked > 4 {
			return enough
		}
		return nil
	}})
	w.Settle()
	if decided := len(w.Pods()); decided > 3 || !errors.Is(w.Err(), enough) {
		t.Errorf("%d pods were decided, %v", decided, w.Err())
	}
	if quiet := w.AdvanceUntilQuiet(1 << 50); quiet {
		t.Error("a world that was stopped says that all is quiet")
	}
	for _, op := range []simulate.Operation{{Cordon: &simulate.Nodes{Node: "node-1"}}, {Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 100}}} {
		if _, err := w.Do(&op); !errors.Is(err, enough) {
			t.Errorf("%+v: %v", op, err)
		}
	}
	if _, _, err := w.Choose(1, &simulate.Drain{}); !errors.Is(err, enough) {
		t.Errorf("choose: %v", err)
	}
}
