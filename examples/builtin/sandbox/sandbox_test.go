// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/examples/builtin/sandbox"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// profile returns the default profile of a catalog with the plugin's entry.
func profile() *plugins.Profile {
	return plugins.DefaultOf(append(plugins.Catalog(), sandbox.Entry()))
}

func node(name, label string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {kubernetes.io/hostname: %[1]s, %s: ""}}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
`, name, label)
}

const pod = `---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: gvisor}
handler: runsc
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {runtimeClassName: gvisor, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
`

func world(t *testing.T, manifests ...string) *simulate.World {
	t.Helper()
	set, err := manifest.Read([]string{"-"}, strings.NewReader(strings.Join(manifests, "")), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	set.Expand(1)
	w, err := simulate.Open(set, simulate.Options{Seed: 1, Profiles: []*plugins.Profile{profile()}})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestTheEngineGroupsNodesByIt verifies that the engine, which calls the plugin once for all nodes
// with the same labels, agrees with the plain evaluator.
func TestTheEngineGroupsNodesByIt(t *testing.T) {
	w := world(t, node("a", "disk"), node("b", sandbox.Prefix+"gvisor"), node("c", "disk"), pod)
	found, _ := w.Find("default", "p")
	if got := w.Decider(v1.DefaultSchedulerName).Decide(found.Pod); got.Node == nil || got.Node.Name != "b" {
		t.Errorf("decided for %v, want node b", got.Node)
	}
	if plain := decide.NewPlain(w.Cluster(), profile()).Evaluate(found.Pod); plain.Feasible != 1 {
		t.Errorf("the plain evaluator finds %d nodes, want 1", plain.Feasible)
	}
}

func TestARejectedPodWakesForTheRightNodeOnly(t *testing.T) {
	for label, wakes := range map[string]bool{sandbox.Prefix + "gvisor": true, sandbox.Prefix + "kata": false} {
		c := cluster.New()
		waiting := &v1.Pod{}
		waiting.Name, waiting.UID = "p", types.UID("p")
		waiting.Spec.SchedulerName, waiting.Spec.RuntimeClassName = v1.DefaultSchedulerName, ptr.To("gvisor")
		q, now := queue.New(), time.Unix(1_700_000_000, 0)
		q.SetInterests(v1.DefaultSchedulerName, profile().Interests(c, nil))
		item := q.Add(waiting, c.Pending(waiting).Class, now)
		q.Rejected(q.Pop(now), []string{sandbox.Sandbox{}.Name()}, nil, now)
		added := &v1.Node{}
		added.Name, added.Labels = "n", map[string]string{label: ""}
		q.Happened(&queue.Event{Resource: queue.Node, Action: queue.Add, Node: c.SetNode(added)}, now.Add(time.Hour))
		if got := item.Place() != queue.Waiting; got != wakes {
			t.Errorf("a node with %s: wakes %t, want %t", label, got, wakes)
		}
	}
}

func TestExplainKnowsWhyAndWhatWouldHelp(t *testing.T) {
	e, err := explain.Of(world(t, node("a", "disk"), pod), explain.Options{Namespace: "default", Name: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Groups) != 1 || e.Groups[0].Code != "NoSandbox" || !slices.Equal(e.Groups[0].Detail, []string{"lacks gvisor"}) {
		t.Errorf("groups: %+v", e.Groups)
	}
	if len(e.Suggestions) == 0 || e.Suggestions[0].Text != "install gvisor on a" || e.Suggestions[0].Node != "a" {
		t.Errorf("suggestions: %+v", e.Suggestions)
	}
	if e.Queue == nil || len(e.Queue.Wakes) != 1 || !slices.Equal(e.Queue.Wakes[0].Events, sandbox.Sandbox{}.Wakes()) {
		t.Errorf("queue: %+v", e.Queue)
	}
}
