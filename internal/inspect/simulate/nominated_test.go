// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

const oneNode = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: small}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: nominated, uid: nom, resourceVersion: "1", creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  SPEC
  priority: 100
  containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]
status: {nominatedNodeName: node-1, phase: Pending}
`

// TestNominationsKeepRoom verifies that a nomination reserves room for a pod of this scheduler,
// even if the pod is gated. Nominations of pods of other schedulers are ignored, like in
// kube-scheduler.
func TestNominationsKeepRoom(t *testing.T) {
	for name, row := range map[string]struct{ spec, node string }{
		"another scheduler's": {"schedulerName: other", "node-1"}, "gated": {"schedulingGates: [{name: wait}]", ""},
	} {
		s := run(t, strings.Replace(oneNode, "SPEC", row.spec, 1), simulate.Options{})
		placed := ""
		for _, p := range s.Pods {
			if p.Name == "small" {
				placed = p.Node
			}
		}
		if placed != row.node {
			t.Errorf("%s: small is on %q", name, placed)
		}
	}
}

const promised = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: there, uid: there, DELETED}
spec: {nodeName: node-1, containers: [{name: c, image: i, resources: {requests: {cpu: "3"}}}]}
status: {CONDITIONS}
---
apiVersion: v1
kind: Pod
metadata: {name: nominated, uid: nom, resourceVersion: "1", creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  priority: 100
  POLICY
  containers: [{name: c, image: i, resources: {requests: {cpu: "3"}}}]
status: {nominatedNodeName: node-1, phase: Pending}
---
apiVersion: v1
kind: Pod
metadata: {name: small}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
`

// TestAFailedAttemptKeepsTheRoomThatWasPromised verifies that a pod keeps its nomination after a
// failed attempt while its victims are leaving, or if it may not preempt, so that its promised room
// is not given away. A pod that may preempt but finds no victims loses its nomination.
func TestAFailedAttemptKeepsTheRoomThatWasPromised(t *testing.T) {
	leaving := `deletionTimestamp: "2026-01-01T00:00:30Z", deletionGracePeriodSeconds: 30`
	victim := `conditions: [{type: DisruptionTarget, status: "True", reason: PreemptionByScheduler}]`
	for _, c := range []struct{ name, deleted, conditions, policy string }{
		{"its victim is leaving", leaving, victim, ""},
		{"it never preempts", "labels: {}", "", "preemptionPolicy: Never"},
		{"it never preempts, and a pod is leaving", leaving, "", "preemptionPolicy: Never"},
	} {
		s := run(t, strings.NewReplacer("DELETED", c.deleted, "CONDITIONS", c.conditions, "POLICY", c.policy).Replace(promised), simulate.Options{})
		if len(s.Pods) != 2 {
			t.Errorf("%s: %d lines, want 2: %+v", c.name, len(s.Pods), s.Pods)
		}
		for _, p := range s.Pods {
			if p.Node != "" {
				t.Errorf("%s: %s is on %s", c.name, p.Name, p.Node)
			}
		}
	}
	lost := strings.NewReplacer("DELETED", "labels: {}", "CONDITIONS", "", "POLICY", "", "priority: 100", "priority: 0").Replace(promised)
	for _, p := range run(t, lost, simulate.Options{}).Pods {
		if p.Name == "small" && p.Node != "node-1" {
			t.Errorf("nobody makes room for the other pod, and small is on %q", p.Node)
		}
	}
}

const budgeted = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Node
metadata: {name: node-2}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "110"}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: Pod
metadata: {name: going, labels: {app: web}, uid: a, deletionTimestamp: "2026-01-01T00:00:30Z", deletionGracePeriodSeconds: 30}
spec: {nodeName: node-2, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: last, labels: {app: web}, uid: b}
spec: {nodeName: node-1, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, uid: c}
spec: {nodeName: node-1, priority: 50, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: v1
kind: Pod
metadata: {name: urgent}
spec: {priorityClassName: high, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
`

// TestTerminatingPodsAreNotHealthyToBudgets verifies that a terminating pod does not count as
// healthy for its budget: the victim is not the budget's other pod, but a pod without a budget,
// despite its higher priority.
func TestTerminatingPodsAreNotHealthyToBudgets(t *testing.T) {
	s := run(t, budgeted, simulate.Options{})
	for _, p := range s.Pods {
		if len(p.Victims) > 0 && p.Victims[0].Name != "other" {
			t.Errorf("the victim is %s", p.Victims[0].Name)
		}
	}
	if len(s.Pods) == 0 || len(s.Pods[0].Victims) == 0 {
		t.Errorf("nobody was preempted: %+v", s.Pods)
	}
}
