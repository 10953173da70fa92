// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// TestBudgetsAreCountedByScale verifies that the missing status of a budget is computed like the
// disruption controller does.
func TestBudgetsAreCountedByScale(t *testing.T) {
	const manifests = twoNodes + `
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {LIMIT, selector: {matchLabels: {app: web}}}
---
apiVersion: KIND
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {restartPolicy: RESTART, containers: [{name: c, image: i}]}}
  COUNT
---
apiVersion: v1
kind: Pod
metadata: {name: bare, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
`
	for _, c := range []struct{ kind, count, limit, want string }{
		// The bare pod is healthy, but is expected only under an absolute minAvailable.
		{"apps/v1\nkind: Deployment", "replicas: 4", "maxUnavailable: 25%", "4 expected, 3 desired, 5 healthy, 2 allowed"},
		{"apps/v1\nkind: StatefulSet", "replicas: 4", "minAvailable: 50%", "4 expected, 2 desired, 5 healthy, 3 allowed"},
		{"apps/v1\nkind: Deployment", "replicas: 4", "minAvailable: 4", "5 expected, 4 desired, 5 healthy, 1 allowed"},
		// DaemonSets and Jobs have no scale subresource: their pods make a budget with
		// maxUnavailable fail to sync.
		{"apps/v1\nkind: DaemonSet", "", "maxUnavailable: 1", "0 expected, 0 desired, 3 healthy, 0 allowed"},
		{"apps/v1\nkind: DaemonSet", "", "minAvailable: 1", "3 expected, 1 desired, 3 healthy, 2 allowed"},
		{"batch/v1\nkind: Job", "parallelism: 2", "maxUnavailable: 50%", "0 expected, 0 desired, 3 healthy, 0 allowed"},
	} {
		restart, selector := "Always", "selector: {matchLabels: {app: web}}\n  template"
		if strings.HasPrefix(c.kind, "batch") {
			restart = "Never"
		}
		text := strings.NewReplacer("KIND", c.kind, "COUNT", c.count, "LIMIT", c.limit, "RESTART", restart).Replace(manifests)
		if restart == "Never" { // the API server sets a Job's selector
			text = strings.Replace(text, selector, "template", 1)
		}
		w := opened(t, text)
		w.Settle()
		b, _ := w.Cluster().Budgets.Get("default", "web")
		s := b.Status
		got := fmt.Sprintf("%d expected, %d desired, %d healthy, %d allowed", s.ExpectedPods, s.DesiredHealthy, s.CurrentHealthy, s.DisruptionsAllowed)
		if got != c.want {
			t.Errorf("%s, %s: %s, want %s", c.kind, c.limit, got, c.want)
		}
	}
}

// TestPodsWithoutAReadyConditionAreNotHealthy verifies that a pod with some reported status but no
// Ready condition is not ready.
func TestPodsWithoutAReadyConditionAreNotHealthy(t *testing.T) {
	w := opened(t, twoNodes+`
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: Pod
metadata: {name: starts, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {phase: Running, startTime: "2026-11-20T09:00:00Z", conditions: [{type: PodScheduled, status: "True"}]}
`)
	do(t, w, simulate.Operation{Cordon: &simulate.Nodes{Node: "node-2"}})
	if b, _ := w.Cluster().Budgets.Get("default", "web"); b.Status.CurrentHealthy != 0 {
		t.Errorf("%d healthy", b.Status.CurrentHealthy)
	}
}

// TestPodsThatHaveEndedFailTheSyncOfTheirBudget verifies that controllers of ended pods count for
// the sync of budgets as well: a finished Job with a Deployment's labels makes the Deployment's
// budget allow nothing until the Job's pods are deleted.
func TestPodsThatHaveEndedFailTheSyncOfTheirBudget(t *testing.T) {
	const manifests = twoNodes + `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: migrate, labels: {app: web}, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: migrate, uid: j, controller: true}]}
spec: {nodeName: node-1, restartPolicy: Never, containers: [{name: c, image: i}]}
status: {phase: Succeeded}
`
	w := opened(t, manifests)
	w.Settle()
	allowed := func(want int32) {
		t.Helper()
		if b, _ := w.Cluster().Budgets.Get("default", "web"); b.Status.DisruptionsAllowed != want {
			t.Errorf("the budget allows %d disruptions, want %d: %+v", b.Status.DisruptionsAllowed, want, b.Status)
		}
	}
	allowed(0)
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/migrate"}})
	allowed(1)
}

// TestABudgetIsCountedWhenWhatFailedItsSyncHasLeft verifies that a budget's remaining pods are
// counted once the only pod has left whose controller made the budget fail to sync. Unready pods
// stay unready.
func TestABudgetIsCountedWhenWhatFailedItsSyncHasLeft(t *testing.T) {
	const pod = `
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, uid: NAME, labels: {app: web}, ownerReferences: [{apiVersion: OWNER, name: o, uid: "OWNER", controller: true}]}
spec: {nodeName: NODE, containers: [{name: c, image: i}]}
status: {phase: Running, conditions: [{type: Ready, status: "READY"}]}
`
	with := func(name, owner, node, ready string) string {
		return strings.NewReplacer("NAME", name, "OWNER", owner, "NODE", node, "READY", ready).Replace(pod)
	}
	const set = "apps/v1, kind: ReplicaSet"
	for _, c := range []struct{ foreign, others, want string }{
		{"apps.kruise.io/v1alpha1, kind: CloneSet", "", "3 expected, 2 desired, 2 healthy, 0 allowed, failed false"},
		// Another pod with such a controller remains, or replaces the deleted one.
		{"apps.kruise.io/v1alpha1, kind: CloneSet", with("other", "batch/v1, kind: Job", "node-2", "True"),
			"0 expected, 0 desired, 0 healthy, 0 allowed, failed true"},
		{"batch/v1, kind: Job", "", "3 expected, 2 desired, 2 healthy, 0 allowed, failed true"},
	} {
		w := opened(t, twoNodes+`
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
status:
  disruptionsAllowed: 0
  currentHealthy: 0
  desiredHealthy: 0
  expectedPods: 0
  conditions: [{type: DisruptionAllowed, status: "False", reason: SyncFailed, message: "no", lastTransitionTime: "2026-11-20T09:00:00Z"}]
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: o, uid: "`+set+`"}
spec: {replicas: 3, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
`+with("a", set, "node-1", "True")+with("b", set, "node-2", "True")+with("c", set, "node-2", "False")+with("x", c.foreign, "node-1", "False")+c.others)
		for _, node := range []string{"node-1", "node-2"} { // no new pod fits on them
			do(t, w, simulate.Operation{Cordon: &simulate.Nodes{Node: node}})
		}
		do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/x"}})
		b, _ := w.Cluster().Budgets.Get("default", "web")
		s := b.Status
		got := fmt.Sprintf("%d expected, %d desired, %d healthy, %d allowed, failed %t", s.ExpectedPods, s.DesiredHealthy, s.CurrentHealthy,
			s.DisruptionsAllowed, disruption.FailedSync(&s))
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.foreign, got, c.want)
		}
	}
}
