// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestAPodUnderTwoBudgetsIsNotEvicted verifies that a drain does not evict a pod covered by two
// budgets, because the Eviction API fails for such pods, whatever the budgets allow. Like kubectl,
// the drain does not retry, and continues with the other pods and the next node.
func TestAPodUnderTwoBudgetsIsNotEvicted(t *testing.T) {
	var text strings.Builder
	text.WriteString(twoNodes)
	for name, node := range map[string]string{"two": "node-1", "one": "node-1", "next": "node-2"} {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec: {nodeName: %s, containers: [{name: c, image: i}]}
`, name, name, node)
	}
	for _, name := range []string{"a", "b"} {
		fmt.Fprintf(&text, "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: %s}\nspec: {minAvailable: 0, selector: {matchLabels: {app: two}}}\n", name)
	}
	s := run(t, text.String(), simulate.Options{For: time.Hour, Scenario: scenario(t, "- {at: 1m, drain: {nodes: [node-1, node-2], force: true}}\n")})
	var lines []string
	for _, e := range s.Timeline {
		if strings.Contains(e.Kind, "Drain") {
			lines = append(lines, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Node, " ", e.Name, " ", e.After)))
		}
	}
	want := []string{
		"PodDrained node-1 one 60s", "DrainBlocked node-1 two 60s", "DrainGaveUp node-1  60s",
		"PodDrained node-2 next 60s", "NodeDrained node-2  60s",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
}

// TestAReplicaSetOfADeploymentIsPutBack verifies that a Deployment reverts a change of its
// ReplicaSet's replicas.
func TestAReplicaSetOfADeploymentIsPutBack(t *testing.T) {
	for _, replicas := range []int{1, 5} {
		w := opened(t, twoNodes+storedDeployment)
		done := do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "rs/web-1", Replicas: replicas}})
		if pods := names(w, "web-"); len(pods) != 3 || len(done.Notes) != 1 {
			t.Errorf("scaled to %d: %v, notes %q", replicas, pods, done.Notes)
		}
	}
}

// TestADeploymentIsScaledInProportion verifies that scaling a Deployment during a rollout scales
// each of its ReplicaSets proportionally, with the surge permitted by its strategy. Applying the
// Deployment unchanged does not scale the ReplicaSets.
func TestADeploymentIsScaledInProportion(t *testing.T) {
	text := twoNodes + `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, uid: web}
spec:
  replicas: 10
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: new}]}}
`
	for i, replicas := range []int{6, 4} {
		text += fmt.Sprintf(`---
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web-%d
  uid: web-%[1]d
  creationTimestamp: "2026-01-0%[2]dT00:00:00Z"
  annotations: {deployment.kubernetes.io/desired-replicas: "10", deployment.kubernetes.io/max-replicas: "13"}
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: web, controller: true}]
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web, pod-template-hash: "%[1]d"}}, spec: {containers: [{name: c, image: %[4]s}]}}
`, i, i+1, replicas, []string{"old", "new"}[i])
	}
	for _, row := range []struct{ to, old, new int }{{5, 3, 4}, {20, 17, 8}, {0, 0, 0}, {10, 6, 4}} {
		w := opened(t, text)
		if row.to != 10 {
			do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: row.to}})
		} else {
			apply(t, w, text[strings.Index(text, "---\napiVersion: apps/v1\nkind: Deployment"):strings.Index(text, "---\napiVersion: apps/v1\nkind: ReplicaSet")])
		}
		if a, b := len(names(w, "web-0-")), len(names(w, "web-1-")); a != row.old || b != row.new {
			t.Errorf("scaled to %d: %d of the old template and %d of the new one, want %d and %d", row.to, a, b, row.old, row.new)
		}
	}
}

// TestDeletedPodsComeBackFromTheNewTemplate verifies that pods kept by an update strategy are
// recreated from the new template once they are deleted, except below the partition.
func TestDeletedPodsComeBackFromTheNewTemplate(t *testing.T) {
	const workload = `
apiVersion: apps/v1
kind: KIND
metadata: {name: web}
spec:
  STRATEGY
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "i:1", resources: {requests: {cpu: CPU}}}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
`
	for _, c := range []struct{ kind, strategy, cpu string }{
		{"StatefulSet", "{replicas: 2, updateStrategy: {type: OnDelete}", "2"},
		{"StatefulSet", "{replicas: 2, updateStrategy: {rollingUpdate: {partition: 1}}", "1"}, // web-0 stays behind
		{"DaemonSet", "{updateStrategy: {type: OnDelete}", "2"},
		{"ReplicaSet", "{replicas: 2", "2"},
	} {
		strategy := strings.ReplaceAll(strings.Trim(c.strategy, "{"), ", ", "\n  ")
		text := strings.NewReplacer("KIND", c.kind, "STRATEGY", strategy).Replace(workload)
		w := opened(t, twoNodes+strings.Replace(text, "CPU", "1", 1))
		apply(t, w, strings.Replace(text, "CPU", "2", 1))
		first := names(w, "web-")[0]
		do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/" + first}})
		d := w.Departures()[len(w.Departures())-1]
		next, node, message, ok := d.Next()
		if !ok || node == "" {
			t.Fatalf("%s %s: %s is not made again: %s", c.kind, c.strategy, first, message)
		}
		f, _ := w.Find(next.Namespace, next.Name)
		if cpu := f.Object.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]; cpu.String() != c.cpu {
			t.Errorf("%s %s: %s comes back with %s CPUs, want %s", c.kind, c.strategy, first, cpu.String(), c.cpu)
		}
		if b, _ := w.Cluster().Budgets.Get("default", "web"); b.Status.ExpectedPods != 2 || b.Status.CurrentHealthy != 2 {
			t.Errorf("%s %s: the budget counts %d of %d pods", c.kind, c.strategy, b.Status.CurrentHealthy, b.Status.ExpectedPods)
		}
	}
}

// TestPodsOfAnEarlierTemplateComeBackFromTheNewOne verifies that a deleted pod is recreated from
// the current template if the template changed before the simulation began.
func TestPodsOfAnEarlierTemplateComeBackFromTheNewOne(t *testing.T) {
	const workload = `---
apiVersion: apps/v1
kind: KIND
metadata: {name: web, uid: w, annotations: {deprecated.daemonset.template.generation: "2"}}
spec:
  updateStrategy: {type: OnDelete}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "i:1", resources: {requests: {cpu: "2"}}}]}
status: {updateRevision: web-b}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-0
  labels: {app: web, controller-revision-hash: web-a, pod-template-generation: "1"}
  ownerReferences: [{apiVersion: apps/v1, kind: KIND, name: web, uid: w, controller: true}]
spec: {nodeName: node-1, containers: [{name: c, image: "i:1", resources: {requests: {cpu: "1"}}}]}
`
	for _, kind := range []string{"StatefulSet", "DaemonSet"} {
		text := strings.ReplaceAll(workload, "KIND", kind)
		if kind == "DaemonSet" {
			text = strings.ReplaceAll(text, "status: {updateRevision: web-b}\n", "")
		}
		w := opened(t, twoNodes+text)
		do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/web-0"}})
		next, _, message, ok := w.Departures()[0].Next()
		if !ok {
			t.Fatalf("%s: web-0 is not made again: %s", kind, message)
		}
		f, _ := w.Find(next.Namespace, next.Name)
		if cpu := f.Object.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]; cpu.String() != "2" {
			t.Errorf("%s: web-0 comes back with %s CPUs, want 2", kind, cpu.String())
		}
	}
}

// TestResizedPodsComeBackAsTheyWereMade verifies that a pod resized in place is recreated from its
// template, unless a mutation of requests at creation applies again.
func TestResizedPodsComeBackAsTheyWereMade(t *testing.T) {
	const workload = `---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, uid: w}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "i:1", resources: {limits: {cpu: "1"}}}]}
status: {updateRevision: web-b}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-0
  generation: GENERATION
  labels: {app: web, controller-revision-hash: REVISION}
  annotations: {NOTE: "c: cpu request"}
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: web, uid: w, controller: true}]
spec:
  nodeName: node-1
  containers: [{name: c, image: "i:1", resources: {requests: {cpu: "2", memory: 1Gi}, limits: {cpu: "2"}}}]
`
	for _, c := range []struct{ name, generation, revision, note, want string }{
		{"resized", "2", "web-b", "other", "1 1 1Gi"},
		{"made so", "1", "web-b", "other", "2 2 1Gi"},
		{"by an autoscaler", "2", "web-b", "vpaUpdates", "2 2 1Gi"},
	} {
		text := strings.NewReplacer("GENERATION", c.generation, "REVISION", c.revision, "NOTE", c.note).Replace(workload)
		w := opened(t, twoNodes+text)
		do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/web-0"}})
		next, _, message, ok := w.Departures()[0].Next()
		if !ok {
			t.Fatalf("%s: web-0 is not made again: %s", c.name, message)
		}
		f, _ := w.Find(next.Namespace, next.Name)
		of := f.Object.Spec.Containers[0].Resources
		if got := fmt.Sprint(of.Requests.Cpu(), of.Limits.Cpu(), of.Requests.Memory()); got != c.want {
			t.Errorf("%s: web-0 comes back with %s, want %s", c.name, got, c.want)
		}
	}
}

// TestADaemonSetsGapIsFilledFromTheNewTemplate verifies that a node that repels a DaemonSet's pods
// during a rollout gets the new pod afterwards.
func TestADaemonSetsGapIsFilledFromTheNewTemplate(t *testing.T) {
	const set = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: c, image: "i:1", resources: {requests: {cpu: CPU}}}]}
`
	w := opened(t, twoNodes+strings.Replace(set, "CPU", "1", 1))
	tainting := &simulate.Tainting{Nodes: simulate.Nodes{Node: "node-1"}, Taints: []string{"k=v:NoExecute"}}
	do(t, w, simulate.Operation{Taint: tainting})
	w.Advance(time.Minute)
	apply(t, w, strings.Replace(set, "CPU", "2", 1))
	do(t, w, simulate.Operation{Untaint: tainting})
	for _, f := range w.Each() {
		if cpu := f.Object.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]; cpu.String() != "2" {
			t.Errorf("%s on %s is of the old template", f.Object.Name, f.Object.Spec.NodeName)
		}
	}
	if pods := names(w, "agent"); len(pods) != 2 {
		t.Errorf("pods: %v", pods)
	}
}

// spreadWithBudget returns three nodes, a Deployment with one pod for each node, and a budget with
// the given minAvailable.
func spreadWithBudget(whenUnsatisfiable string, available int) string {
	nodes := strings.Split(district(3), "---\napiVersion: apps/v1")[0]
	return nodes + fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      containers: [{name: c, image: i}]
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: %s, labelSelector: {matchLabels: {app: a}}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: %d, selector: {matchLabels: {app: a}}}
`, whenUnsatisfiable, available)
}

// TestPodsOfASilentNodeAreNotHealthy verifies that node health marks the pods of a silent node as
// not ready, so their budget allows no further drain until a replacement is ready. The pods are
// ready again when their node returns.
func TestPodsOfASilentNodeAreNotHealthy(t *testing.T) {
	cluster := spreadWithBudget("ScheduleAnyway", 2)
	for _, c := range []struct {
		steps string
		want  time.Duration // time at which the drain evicts the pod
	}{
		{"- {at: 1m, fail: {node: node-0}}\n- {at: 3m, drain: {node: node-1}}\n", 6 * time.Minute},
		{"- {at: 1m, fail: {node: node-0}}\n- {at: 4m, recover: {node: node-0}}\n- {at: 3m, drain: {node: node-1}}\n", 4 * time.Minute},
	} {
		s := run(t, cluster, simulate.Options{For: 20 * time.Minute, Scenario: scenario(t, c.steps)})
		var drained time.Duration
		for _, e := range s.Timeline {
			if e.Kind == "PodDrained" {
				drained = time.Duration(e.After)
			}
		}
		if drained < c.want || drained > c.want+time.Minute {
			t.Errorf("%s: drained after %s, want %s to %s", c.steps, drained, c.want, c.want+time.Minute)
		}
	}
}

// TestABudgetHoldsPodsOfASilentNode verifies that a budget holds a pod on a silent node if the pod
// was placed while time passed, since it counts as running even after node health has marked it.
// Only pods without started containers are evicted regardless.
func TestABudgetHoldsPodsOfASilentNode(t *testing.T) {
	cluster := spreadWithBudget("DoNotSchedule", 3)
	s := run(t, cluster, simulate.Options{
		For: 5 * time.Minute, Scenario: scenario(t, "- {at: 1m, fail: {node: node-0}}\n- {at: 3m, drain: {node: node-0, timeout: 1m}}\n"),
	})
	var lines []string
	for _, e := range s.Timeline {
		if strings.Contains(e.Kind, "Drain") {
			lines = append(lines, fmt.Sprint(e.Kind, " ", e.After))
		}
	}
	if diff := cmp.Diff([]string{"DrainBlocked 180s", "DrainGaveUp 240s"}, lines); diff != "" {
		t.Error(diff)
	}
}

// TestAddedPods verifies that added pods get unique names, and the claims that controllers create
// for new pods.
func TestAddedPods(t *testing.T) {
	const volumes = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: any, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: p
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: Pod
metadata: {name: cache}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
  volumes: [{name: data, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]
`
	const devices = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: d
  nodeName: node-1
  pool: {name: p, generation: 1, resourceSliceCount: 1}
  devices: [{name: a}, {name: b}, {name: c}, {name: d}, {name: e}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: cache}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: "1"}, claims: [{name: g}]}}]
  resourceClaims: [{name: g, resourceClaimTemplateName: one}]
`
	for kind, text := range map[string]string{"ephemeral volumes": volumes, "device claim templates": devices} {
		w := opened(t, twoNodes+text)
		for range 2 {
			done := do(t, w, simulate.Operation{AddPods: &simulate.AddPods{Count: 2, Like: "pod/cache"}})
			if done.Fill.Placed != 2 {
				t.Errorf("%s: placed %d: %s", kind, done.Fill.Placed, done.Fill.Stops)
			}
		}
		if pods := names(w, "cache"); len(pods) != 5 {
			t.Errorf("%s: pods: %v", kind, pods)
		}
	}
}

// TestEphemeralVolumesGoWithTheirPod verifies that a pod recreated under its name gets new
// ephemeral volumes, because its predecessor's volumes were deleted with the predecessor.
func TestEphemeralVolumesGoWithTheirPod(t *testing.T) {
	const set = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: any, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: p
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 1
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: c, image: i}]
      volumes: [{name: data, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]
`
	w := opened(t, twoNodes+set)
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/db-0"}})
	if f, ok := w.Find("default", "db-0"); !ok || f.Pod == nil || f.Pod.NodeName == "" {
		t.Errorf("it waits: %s", f.Message)
	}
}

// TestScalingDownRemovesWhatTheControllerRemoves verifies that scaling down removes pods in the
// order of the ReplicaSet controller: pods without a node, pods not started, pods not ready, and
// then by deletion cost, number of replicas on the node, ready time, and restarts.
func TestScalingDownRemovesWhatTheControllerRemoves(t *testing.T) {
	ready := func(status, since string) string {
		return `{phase: Running, conditions: [{type: Ready, status: "` + status + `", lastTransitionTime: "` + since + `"}]`
	}
	const long, short = "2026-11-20T02:00:00Z", "2026-11-20T09:59:00Z"
	pods := []struct{ name, node, status, cost string }{ // in order of removal
		{"nowhere", "", `{phase: Pending}`, ""},
		{"starts", "node-1", `{phase: Pending, conditions: [{type: Ready, status: "False"}]}`, ""},
		{"unready", "node-1", ready("False", long) + "}", ""},
		{"cheap", "node-1", ready("True", long) + "}", "-5"},
		{"crowded-1", "node-1", ready("True", long) + "}", ""},
		{"young", "node-2", ready("True", short) + "}", ""},
		{"restarted", "node-3", ready("True", long) + ", containerStatuses: [{name: c, restartCount: 4}]}", ""},
		{"crowded-2", "node-1", ready("True", long) + "}", ""}, // now the only pod on its node, like the last, so the UID decides
		{"stays", "node-4", ready("True", long) + "}", ""},
	}
	var text strings.Builder
	for i := range 4 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-%d}\nstatus: {allocatable: {cpu: '4', memory: 8Gi, pods: '110'}}\n", i+1)
	}
	text.WriteString(`---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web, uid: web, resourceVersion: "1"}
spec: {replicas: 9, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
`)
	for _, p := range pods {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata:
  {name: %s, uid: %s, resourceVersion: "1", creationTimestamp: "2026-11-20T02:00:00Z", annotations: {controller.kubernetes.io/pod-deletion-cost: "%s"},
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: web, controller: true}]}
spec: {nodeName: "%s", containers: [{name: c, image: i}]}
status: %s
`, p.name, p.name, p.cost, p.node, p.status)
	}

	w, err := simulate.Open(read(t, text.String()), simulate.Options{Now: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range pods[:len(pods)-1] {
		do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "rs/web", Replicas: len(pods) - 1 - i}})
		if _, there := w.Find("default", p.name); there {
			t.Fatalf("with %d pods, %s is still there: %v", len(pods)-1-i, p.name, names(w, ""))
		}
	}
}

// TestLimitRangesFillInWhatIsMissingOfPodsThatComeBack verifies that recreated pods get the
// defaults of limit ranges created after the original pods: missing values are filled in, not
// refused.
func TestLimitRangesFillInWhatIsMissingOfPodsThatComeBack(t *testing.T) {
	w := opened(t, twoNodes+`---
apiVersion: v1
kind: LimitRange
metadata: {name: small}
spec: {limits: [{type: Container, max: {cpu: "1"}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-a, uid: a, resourceVersion: "1", ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: w, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, uid: d, resourceVersion: "1", ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: s, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
`)
	for _, pod := range []string{"web-a", "db-0"} {
		do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/" + pod}})
	}
	w.Settle()
	_, node, message, ok := w.Departures()[0].Next()
	if !ok || node == "" {
		t.Errorf("web-a is not made again: %s", message)
	}
	// A default limit below the pod's request is invalid, with the API server's message.
	const invalid = `Pod "db-0" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`
	if _, node, message, _ := w.Departures()[1].Next(); node != "" || message != invalid {
		t.Errorf("db-0 is on %q: %s", node, message)
	}
}

// TestPodsOfANodeOutOfServiceAreMadeAgain verifies that a pod deleted on an unresponsive node is
// removed when the node is taken out of service, as by the pod garbage collector.
func TestPodsOfANodeOutOfServiceAreMadeAgain(t *testing.T) {
	w := opened(t, twoNodes+`---
apiVersion: v1
kind: Node
metadata: {name: dead}
status: {allocatable: {cpu: "4", pods: "10"}, conditions: [{type: Ready, status: Unknown}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, uid: d, resourceVersion: "1", ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: s, controller: true}]}
spec: {nodeName: dead, containers: [{name: c, image: i}]}
`)
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/db-0"}})
	if fate := w.Departures()[0].Fate; fate != simulate.Stays {
		t.Fatalf("the node does not respond, and its pod is %s", fate)
	}
	do(t, w, simulate.Operation{Taint: &simulate.Tainting{
		Nodes: simulate.Nodes{Node: "dead"}, Taints: []string{v1.TaintNodeOutOfService + "=shutdown:NoSchedule"},
	}})
	if _, node, message, ok := w.Departures()[0].Next(); !ok || !strings.HasPrefix(node, "node-") {
		t.Errorf("db-0 is on %q: %s", node, message)
	}
}
