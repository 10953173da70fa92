// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

const oneNode = `
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: 2, memory: 4Gi, pods: 110}}
---
apiVersion: v1
kind: Pod
metadata: {name: big, namespace: default, uid: big-1, resourceVersion: "7", creationTimestamp: "2026-11-20T10:00:00Z"}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 4}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: small, namespace: default, uid: small-1, resourceVersion: "8", creationTimestamp: "2026-11-20T10:00:00Z"}
spec: {nodeName: n1, containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}
`

// explainWith explains a pod with the given decision of the scheduler.
func explainWith(t *testing.T, pod string, d *decision.Decision) (*explain.Explanation, string) {
	t.Helper()
	set, err := manifest.Read([]string{"-"}, strings.NewReader(oneNode), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := simulate.Open(set, simulate.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	e, err := explain.Of(w, explain.Options{Namespace: "default", Name: pod, Decided: d})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := e.Write(&b, ""); err != nil {
		t.Fatal(err)
	}
	return e, b.String()
}

func at(hour int) metav1.Time { return metav1.Date(2026, 11, 20, hour, 0, 0, 0, time.UTC) }

// TestTheSchedulersOwnDecisionIsUsed verifies that the explanation reports, for each decision,
// whether it still holds, and verifies the printed text.
func TestTheSchedulersOwnDecisionIsUsed(t *testing.T) {
	const message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
	ten, eleven := at(10), at(11)
	pending := decision.Decision{
		UID: "big-1", Result: decision.Unschedulable, At: &ten, Took: 0.00025, Message: message, Nodes: 1,
		Queue: &decision.Queue{
			Place: "unschedulable", Attempts: 3, Since: ten, NotAfter: &eleven,
			Wakes: []decision.Wake{
				{Plugin: "NodeResourcesFit", Events: []string{"Node Add|UpdateNodeAllocatable"}},
				{Plugin: "NodeResourcesFit", Events: []string{"Pod Delete"}}, {Plugin: "Foreign", Events: []string{"Node Add"}},
				{Plugin: "GangScheduling"}, {Plugin: "Silent"},
			},
		},
	}
	outdated := pending
	outdated.Message = "0/7 nodes are available: 7 Insufficient memory."
	another := pending
	another.UID = "big-0"
	placed := decision.Decision{UID: "small-1", Result: decision.Placed, At: &ten, Node: "n1", Nodes: 9, Feasible: 4, Score: 180}
	moved := placed
	moved.Node = "n7"
	alone := placed
	alone.Feasible = 1
	for _, c := range []struct {
		name, pod string
		d         *decision.Decision
		holds     bool
		says      []string
		not       string
	}{
		{"pending, and so it is", "big", &pending, true, []string{
			"The scheduler last decided it at 2026-11-20 10:00:00Z, in 250µs, and returned it to the queue. This still holds.",
			"In the scheduler's queue since 2026-11-20 10:00:00Z, 3 attempts: it is retried after an event that can help, and by 11:00:00Z at the latest.",
			"- for NodeResourcesFit: a node is added; a node's allocatable grows", "- for Foreign: Node Add\n",
			"- for GangScheduling: a pod joins or leaves its pod group; its PodGroup is added or changes\n",
			"- for Silent: events that this plugin does not describe\n"}, "Place in the queue"},
		{"pending for another reason", "big", &outdated, false, []string{"7 Insufficient memory", "The cluster has changed since", "The scheduler's message: " + message}, "still holds"},
		{"a pod of the same name", "big", &another, false, []string{"Place in the queue: 1 of 1"}, "last decided"},
		{"placed, and would be", "small", &placed, true, []string{"chose n1, one of the 4 of 9 nodes that could take it, with a score of 180. This still holds."}, "In the scheduler's queue"},
		{"one node could take it", "small", &alone, true, []string{"chose n1, the only one of 9 nodes that could take it, with"}, "one of the 1"},
		{"bound by another client", "small", &moved, false, []string{"chose n7", "has changed since"}, "still holds"},
		{"not asked", "big", nil, false, []string{"Place in the queue: 1 of 1"}, "last decided"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, text := explainWith(t, c.pod, c.d)
			if holds := e.LastDecision != nil && e.LastDecision.Holds; holds != c.holds {
				t.Errorf("holds: %t", holds)
			}
			for _, want := range c.says {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			for _, once := range []string{message, "- for NodeResourcesFit"} {
				if strings.Count(text, once) > 1 {
					t.Errorf("%q more than once in\n%s", once, text)
				}
			}
			if strings.Contains(text, c.not) {
				t.Errorf("%q in\n%s", c.not, text)
			}
		})
	}
}

// TestTheGroupOfAPodIsTold verifies the text about the pod's group.
func TestTheGroupOfAPodIsTold(t *testing.T) {
	for want, g := range map[string]decision.Group{
		"It names pod group g, which does not exist":                                                              {Name: "g", Missing: true, Members: 2},
		"It belongs to pod group g: 0 of 2 pods placed, minCount 3. The group is not tried before it has 3 pods.": {Name: "g", MinCount: 3, Members: 2},
		"pod group g: 1 of 3 pods placed, minCount 3. It is pending: 2 of 3 pods fit.":                            {Name: "g", MinCount: 3, Members: 3, Placed: 1, Message: "2 of 3 pods fit."},
		"1 of 3 pods placed. The group was scheduled":                                                             {Name: "g", Members: 3, Placed: 1, Scheduled: true},
	} {
		_, said := explainWith(t, "big", &decision.Decision{UID: "big-1", Result: decision.None, Group: &g})
		if said := strings.Join(strings.Fields(said), " "); !strings.Contains(said, want) {
			t.Errorf("%q is not in %q", want, said)
		}
	}
}
