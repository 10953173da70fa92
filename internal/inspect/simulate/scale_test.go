// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestPodsWithoutAStatusAreNotScaledDownFirst verifies that pods bound to nodes in hand-written
// manifests count as running and ready despite their missing status: scaling down their ReplicaSet
// removes the youngest pod, not the first in the manifest.
func TestPodsWithoutAStatusAreNotScaledDownFirst(t *testing.T) {
	text := twoNodes + `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web, uid: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}}
`
	for i, node := range []string{"node-1", "node-2"} {
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata:
  name: web-%d
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels: {app: web}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: web, controller: true}]
spec: {nodeName: %s, containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
`, i, node)
	}
	set := read(t, text)
	set.Expand(1)
	w, err := simulate.Open(set, simulate.Options{Now: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "replicaset/web", Replicas: 2}})
	if got := names(w, "web-"); !slices.Equal(got, []string{"web-0", "web-1"}) {
		t.Errorf("what stays: %q", got)
	}
}

// TestScalingWhatIsBeingDeleted verifies that controllers neither create nor remove pods of a
// workload being deleted, whatever its replicas.
func TestScalingWhatIsBeingDeleted(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		set := read(t, twoNodes+`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, uid: db}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}
`)
		set.Expand(1)
		set.OfKind("StatefulSet")[0].SetDeletionTimestamp(&metav1.Time{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
		w, err := simulate.Open(set, simulate.Options{Now: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)})
		if err != nil {
			t.Fatal(err)
		}
		w.Settle()
		done := do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "statefulset/db", Replicas: replicas}})
		if got := names(w, "db-"); !slices.Equal(got, []string{"db-0", "db-1"}) || len(done.Notes) != 1 {
			t.Errorf("%d replicas: %q, %q", replicas, got, done.Notes)
		}
	}
}

// TestRoomBecomesFreePodByPod verifies that deletions that end at the same time free room pod by
// pod: a small pod takes the room of the first deleted pod before a large pod, regardless of
// priority, can use the room of several.
func TestRoomBecomesFreePodByPod(t *testing.T) {
	text := `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 100
preemptionPolicy: Never
---
apiVersion: v1
kind: Pod
metadata: {name: large}
spec: {priorityClassName: high, containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
`
	for i := range 2 {
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: small-%[1]d}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
---
apiVersion: v1
kind: Pod
metadata:
  {name: leaving-%[1]d, uid: l%[1]d, resourceVersion: "1", creationTimestamp: "2026-01-01T00:00:00Z", deletionTimestamp: "2026-01-01T00:00:30Z", deletionGracePeriodSeconds: 30}
spec: {nodeName: node-1, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
`, i)
	}
	w := opened(t, text)
	w.Advance(time.Minute)
	for name, want := range map[string]string{"large": "", "small-0": "node-1", "small-1": "node-1"} {
		if f, _ := w.Find("default", name); f.Pod.NodeName != want {
			t.Errorf("%s is on %q, want %q", name, f.Pod.NodeName, want)
		}
	}
}
