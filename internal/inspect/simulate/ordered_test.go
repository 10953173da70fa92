// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// orderedSet is a StatefulSet whose pods, together with an unowned pod, fill two nodes. inOrder
// adds its pods: db-0 and db-1 on node-1, and db-2 on node-2.
const orderedSet = twoNodes + `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, uid: db}
spec:
  replicas: 3
  podManagementPolicy: POLICY
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: filler}
spec: {nodeName: node-2, containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
`

// inOrder opens the world of orderedSet.
func inOrder(t *testing.T, policy string, unready ...int) *simulate.World {
	text := strings.Replace(orderedSet, "POLICY", policy, 1)
	for i, node := range []string{"node-1", "node-1", "node-2"} {
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata:
  name: db-%d
  labels: {app: db}
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: db, controller: true}]
spec: {nodeName: %s, containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
`, i, node)
		if slices.Contains(unready, i) {
			text += `status: {phase: Running, conditions: [{type: Ready, status: "False"}]}` + "\n"
		}
	}
	return opened(t, text)
}

// placesOf lists the pods of the set with their nodes.
func placesOf(w *simulate.World) (places []string) {
	for _, f := range w.Each() {
		if strings.HasPrefix(f.Object.Name, "db-") {
			places = append(places, f.Object.Name+" "+f.Pod.NodeName)
		}
	}
	return places
}

// TestAStatefulSetProceedsInOrder verifies that an OrderedReady StatefulSet creates a pod only when
// all pods before it are running, and removes a pod only when all remaining pods are running. A
// Parallel set does not wait.
func TestAStatefulSetProceedsInOrder(t *testing.T) {
	scale := func(n int) simulate.Operation {
		return simulate.Operation{Scale: &simulate.Scale{Workload: "statefulset/db", Replicas: n}}
	}
	drain := simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}}
	makeRoom := simulate.Operation{Delete: &simulate.Delete{Object: "pod/filler"}}
	uncordon := simulate.Operation{Uncordon: &simulate.Nodes{Node: "node-1"}}
	type step struct {
		do   simulate.Operation
		want []string
	}
	for _, c := range []struct {
		policy  string
		steps   []step
		unready []int
	}{
		{"OrderedReady", []step{
			{drain, []string{"db-0 ", "db-2 node-2"}},
			{makeRoom, []string{"db-0 node-2", "db-1 ", "db-2 node-2"}},
			{uncordon, []string{"db-0 node-2", "db-1 node-1", "db-2 node-2"}},
		}, nil},
		{"OrderedReady", []step{
			{drain, []string{"db-0 ", "db-2 node-2"}},
			{scale(2), []string{"db-0 ", "db-2 node-2"}},
			{uncordon, []string{"db-0 node-1", "db-1 node-1"}},
		}, nil},
		{"OrderedReady", []step{{scale(5), []string{"db-0 node-1", "db-1 node-1", "db-2 node-2", "db-3 "}}}, nil},
		{"OrderedReady", []step{{scale(1), []string{"db-0 node-1"}}}, nil},
		{"Parallel", []step{
			{drain, []string{"db-0 ", "db-1 ", "db-2 node-2"}},
			{scale(2), []string{"db-0 node-2", "db-1 "}},
			{scale(4), []string{"db-0 node-2", "db-1 ", "db-2 ", "db-3 "}},
		}, nil},
		// The highest pod is removed first; an unready pod is removed only if no lower pod is
		// unready as well.
		{"OrderedReady", []step{{scale(1), []string{"db-0 node-1", "db-1 node-1", "db-2 node-2"}}}, []int{1, 2}},
		{"OrderedReady", []step{{scale(1), []string{"db-0 node-1"}}}, []int{2}},
		{"OrderedReady", []step{{scale(2), []string{"db-0 node-1", "db-1 node-1", "db-2 node-2"}}}, []int{0}},
		{"Parallel", []step{{scale(1), []string{"db-0 node-1"}}}, []int{0, 1, 2}},
	} {
		w := inOrder(t, c.policy, c.unready...)
		for i, s := range c.steps {
			if do(t, w, s.do); !slices.Equal(placesOf(w), s.want) {
				t.Errorf("%s, after %d steps: %q, want %q", c.policy, i+1, placesOf(w), s.want)
			}
		}
	}
}

// TestAStatefulSetThatIsDeletedMakesNothing verifies that a set being deleted creates no pods, even
// when one of its remaining pods gets a node.
func TestAStatefulSetThatIsDeletedMakesNothing(t *testing.T) {
	text := strings.Replace(orderedSet, "uid: db}", `uid: db, deletionTimestamp: "2026-01-01T00:00:00Z", finalizers: [x/y]}`, 1)
	w := opened(t, strings.Replace(text, "POLICY", "OrderedReady", 1)+`---
apiVersion: v1
kind: Pod
metadata:
  name: db-0
  labels: {app: db}
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: db, controller: true}]
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
`)
	do(t, w, simulate.Operation{Uncordon: &simulate.Nodes{Node: "node-1"}})
	if got := placesOf(w); !slices.Equal(got, []string{"db-0 node-1"}) {
		t.Errorf("%q, want db-0 alone, on node-1", got)
	}
}

// TestAPodWaitsForThoseBeforeIt verifies that a pod to be recreated by its set has the fate Waits
// until it is created, or its set no longer wants it.
func TestAPodWaitsForThoseBeforeIt(t *testing.T) {
	fates := func(w *simulate.World) (list []simulate.Fate) {
		for _, d := range w.Departures() {
			list = append(list, d.Fate)
		}
		return list
	}
	for _, c := range []struct {
		then simulate.Operation
		want simulate.Fate
	}{
		{simulate.Operation{Cordon: &simulate.Nodes{Node: "node-2"}}, simulate.Waits},
		{simulate.Operation{Uncordon: &simulate.Nodes{Node: "node-1"}}, simulate.Returns},
		{simulate.Operation{Scale: &simulate.Scale{Workload: "statefulset/db", Replicas: 1}}, simulate.Ends},
		{simulate.Operation{Delete: &simulate.Delete{Object: "statefulset/db"}}, simulate.Ends},
	} {
		w := inOrder(t, "OrderedReady")
		do(t, w, simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}})
		do(t, w, c.then)
		if got := fates(w); len(got) < 2 || got[0] != simulate.Returns || got[1] != c.want {
			t.Errorf("%+v: %q, want the second to be %s", c.then, got, c.want)
		}
	}
}

// TestAPodNoLongerWaitsOnceItsSetIsDeleted verifies that a pod waiting for its turn is not
// recreated once its StatefulSet is deleted, even if a set of the same name is created later.
func TestAPodNoLongerWaitsOnceItsSetIsDeleted(t *testing.T) {
	w := inOrder(t, "OrderedReady")
	do(t, w, simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}})
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "statefulset/db"}})
	_, set, _ := strings.Cut(strings.Replace(orderedSet, "POLICY", "OrderedReady", 1), twoNodes)
	apply(t, w, set)
	if d := w.Departures()[1]; d.Name != "db-1" || d.Fate != simulate.Ends {
		t.Errorf("%s: %s, want db-1 to end", d.Name, d.Fate)
	}
}

// TestAReplicaSetReplacesItsPodsBeforeAStatefulSet verifies that the ReplicaSet's new pod takes the
// room first, regardless of priorities, because only the StatefulSet controller waits until a pod
// has ended.
func TestAReplicaSetReplacesItsPodsBeforeAStatefulSet(t *testing.T) {
	text := twoNodes + `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 100
preemptionPolicy: Never
---
apiVersion: v1
kind: Pod
metadata: {name: filler}
spec: {nodeName: node-2, containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
`
	for name, kind := range map[string]string{"db": "StatefulSet", "web": "ReplicaSet"} {
		text += strings.NewReplacer("NAME", name, "KIND", kind).Replace(`---
apiVersion: apps/v1
kind: KIND
metadata: {name: NAME, uid: NAME}
spec:
  replicas: 1
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: NAME-0
  labels: {app: NAME}
  ownerReferences: [{apiVersion: apps/v1, kind: KIND, name: NAME, uid: NAME, controller: true}]
spec: {nodeName: node-1, PRIORITY containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
`)
		text = strings.Replace(text, "PRIORITY", map[string]string{"db": "priorityClassName: high,"}[name], 1)
	}
	w := opened(t, text)
	do(t, w, simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}})
	for _, d := range w.Departures() {
		want := map[string]string{"db-0": "", "web-0": "node-2"}[d.Name]
		if _, node, message, _ := d.Next(); node != want {
			t.Errorf("what replaces %s is on %q, want %q: %s", d.Name, node, want, message)
		}
	}
}
