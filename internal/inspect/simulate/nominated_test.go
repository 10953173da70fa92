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

// A nomination keeps room only for a pod that a scheduler may try: kube-scheduler does not know
// those of other schedulers, and takes gated ones into account once they are released.
func TestNominationsOfPodsThatNobodyTriesKeepNoRoom(t *testing.T) {
	for name, spec := range map[string]string{"another scheduler's": "schedulerName: other", "gated": "schedulingGates: [{name: wait}]"} {
		s := run(t, strings.Replace(oneNode, "SPEC", spec, 1), simulate.Options{})
		placed := ""
		for _, p := range s.Pods {
			if p.Name == "small" {
				placed = p.Node
			}
		}
		if placed != "node-1" {
			t.Errorf("%s: small is on %q", name, placed)
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

// Of the two pods of the budget one is on its way out, so the other may not be disrupted: the
// victim is the pod without a budget, though its priority is higher.
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
