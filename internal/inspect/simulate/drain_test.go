// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestADrainsTimeoutIsPerNode verifies that a drain's timeout applies to each node separately, and
// that the drain continues with the next node, like kubectl.
func TestADrainsTimeoutIsPerNode(t *testing.T) {
	var text strings.Builder
	text.WriteString(twoNodes)
	for name, node := range map[string]string{"stays-1": "node-1", "stays-2": "node-2", "goes": "node-2"} {
		app, _, _ := strings.Cut(name, "-")
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec: {nodeName: %s, containers: [{name: c, image: i}]}
`, name, app, node)
	}
	text.WriteString("---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: stays}\nspec: {minAvailable: 2, selector: {matchLabels: {app: stays}}}\n")
	s := run(t, text.String(), simulate.Options{For: time.Hour, Scenario: scenario(t, "- {at: 1m, drain: {nodes: [node-1, node-2], force: true, timeout: 20s}}\n")})
	var lines []string
	for _, e := range s.Timeline {
		if strings.Contains(e.Kind, "Drain") {
			lines = append(lines, fmt.Sprint(e.Kind, " ", e.Node, " ", e.After))
		}
	}
	want := []string{"DrainBlocked node-1 60s", "DrainGaveUp node-1 80s", "PodDrained node-2 80s", "DrainBlocked node-2 80s", "DrainGaveUp node-2 100s"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
}

// TestDrainsOfPodsThatDoNotRun verifies that pods without started containers and terminating pods
// are treated like in kubectl and the Eviction API.
func TestDrainsOfPodsThatDoNotRun(t *testing.T) {
	const pod = `---
apiVersion: v1
kind: Pod
metadata: {name: p, uid: u, resourceVersion: "1", labels: {app: p}EXTRA}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {phase: Pending, conditions: [{type: Ready, status: "False"}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: p}
spec: {minAvailable: 1, selector: {matchLabels: {app: p}}}
`
	drain := simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}, Force: true}
	w := opened(t, twoNodes+strings.Replace(pod, "EXTRA", "", 1))
	if done := do(t, w, simulate.Operation{Drain: &drain}); len(w.Departures()) != 1 {
		t.Errorf("its image is being pulled: %+v", done.Drain)
	}
	drain.Force = false
	w = opened(t, twoNodes+strings.Replace(pod, "EXTRA", `, deletionTimestamp: "2026-01-01T01:00:00Z", deletionGracePeriodSeconds: 30`, 1))
	if done := do(t, w, simulate.Operation{Drain: &drain}); len(done.Drain.Refused) != 1 {
		t.Errorf("it has no controller: %+v", done.Drain)
	}
}

// TestDrainOfAnotherKindOfDaemonSet verifies that a drain, like kubectl, refuses or ignores only
// pods of apps/v1 DaemonSets. Other kinds of that name are ordinary controllers.
func TestDrainOfAnotherKindOfDaemonSet(t *testing.T) {
	for version, evicted := range map[string]bool{"apps/v1": false, "apps.kruise.io/v1alpha1": true} {
		w := opened(t, twoNodes+fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: p, uid: u, ownerReferences: [{apiVersion: %s, kind: DaemonSet, name: d, uid: d, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {phase: Running}
`, version))
		done := do(t, w, simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}})
		if left := w.Departures(); len(left) == 1 != evicted || len(done.Drain.Refused) == 0 != evicted {
			t.Errorf("%s: %+v, left: %+v", version, done.Drain, left)
		}
	}
}

// TestDrainOfAPodWhoseDaemonSetIsGone verifies that a drain, like kubectl, refuses a pod of a
// missing DaemonSet. With --force it evicts the pod, and no controller recreates the pod. Manifests
// without any DaemonSet do not prove that this one is missing.
func TestDrainOfAPodWhoseDaemonSetIsGone(t *testing.T) {
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: p, uid: u, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: gone, uid: d, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {phase: Running}
`
	const other = `---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: other, namespace: kube-system}
spec: {selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}}, spec: {nodeSelector: {none: here}, containers: [{name: c, image: i}]}}}
`
	drain := simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}, IgnoreDaemonSets: true}
	done := do(t, opened(t, twoNodes+pod+other), simulate.Operation{Drain: &drain})
	if list := done.Drain.Refused; len(list) != 1 || !strings.HasPrefix(list[0].Message, `daemonsets.apps "gone" not found`) {
		t.Errorf("refused: %+v", done.Drain)
	}
	if done := do(t, opened(t, twoNodes+pod), simulate.Operation{Drain: &drain}); len(done.Drain.Ignored) != 1 {
		t.Errorf("of manifests without DaemonSets: %+v", done.Drain)
	}
	drain.Force = true
	w := opened(t, twoNodes+pod+other)
	do(t, w, simulate.Operation{Drain: &drain})
	if left := w.Departures(); len(left) != 1 || left[0].Fate != simulate.Lost {
		t.Errorf("with --force: %+v", left)
	}
}

// TestDrainDeletesPodsThatHaveEnded verifies that a drain deletes ended pods regardless of budgets
// and flags.
func TestDrainDeletesPodsThatHaveEnded(t *testing.T) {
	w := opened(t, twoNodes+`
apiVersion: v1
kind: Pod
metadata: {name: p, uid: u}
spec: {nodeName: node-1, containers: [{name: c, image: i}], volumes: [{name: v, emptyDir: {}}]}
status: {phase: Failed}
`)
	done := do(t, w, simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}})
	if _, there := w.Find("default", "p"); there || len(done.Drain.Refused) > 0 {
		t.Errorf("it is there: %t, %+v", there, done.Drain)
	}
}

// TestPodsThatHaveLandedAreHeldByBudgets verifies that budgets protect a pod as soon as it is
// placed, because it is then assumed to be running.
func TestPodsThatHaveLandedAreHeldByBudgets(t *testing.T) {
	w := opened(t, twoNodes+`
apiVersion: v1
kind: Pod
metadata: {name: p, uid: u, labels: {app: p}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: r, controller: true}]}
spec: {containers: [{name: c, image: i}], nodeSelector: {kubernetes.io/hostname: node-1}}
status: {phase: Pending, conditions: [{type: PodScheduled, status: "False"}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: p}
spec: {maxUnavailable: 0, selector: {matchLabels: {app: p}}}
`)
	w.Settle()
	do(t, w, simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}})
	if left := w.Departures(); len(left) > 0 {
		t.Errorf("its budget allows no disruption, and it has left: %+v", left)
	}
}
