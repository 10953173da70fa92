// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

func read(t testing.TB, text string) *manifest.Set {
	t.Helper()
	set, err := manifest.Read([]string{"-"}, strings.NewReader(text), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func run(t testing.TB, text string, options simulate.Options) *simulate.Simulation {
	t.Helper()
	s, err := simulate.Run(read(t, text), options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheSameInputAndSeedGiveTheSameBytes(t *testing.T) {
	text := busyTown()
	answer := func(seed uint64) string {
		var b bytes.Buffer
		s := run(t, text, simulate.Options{Seed: seed, For: 20 * time.Minute, Explain: seed == 1})
		if err := s.Write(&b, "json"); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	first := answer(1)
	for range 4 {
		if diff := cmp.Diff(first, answer(1)); diff != "" {
			t.Fatalf("two runs differ:\n%s", diff)
		}
	}
	if answer(2) == answer(3) {
		t.Error("the seed makes no difference")
	}
}

// TestPlacementsAreTheBestExplained verifies that every pod placed without preemption is on a
// feasible node with the highest total score.
func TestPlacementsAreTheBestExplained(t *testing.T) {
	s := run(t, busyTown(), simulate.Options{Seed: 3, Explain: true})
	placed := 0
	for i := range s.Pods {
		p := &s.Pods[i]
		nominated := i > 0 && s.Pods[i-1].Name == p.Name // a preemptor keeps its nominated node, whichever it is
		if p.Node == "" || nominated {
			continue
		}
		placed++
		var best, got int64 = -1, -1
		for j := range p.Nodes {
			if n := &p.Nodes[j]; n.Feasible {
				best = max(best, *n.Total)
				if n.Name == p.Node {
					got = *n.Total
				}
			}
		}
		if got != best || got < 0 {
			t.Errorf("%s is on %s with a total of %d; the highest is %d", p.Name, p.Node, got, best)
		}
	}
	if totals := s.Totals(); placed == 0 || totals.Pending == 0 || totals.Victims == 0 || totals.Evicted == 0 {
		t.Errorf("the town is too quiet to show anything: %+v", totals)
	}
}

// busyTown is a cluster with a little of everything: zones, taints, lost nodes, spread, affinity,
// priorities, a budget.
func busyTown() string {
	var b strings.Builder
	b.WriteString(`
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 20%, selector: {matchLabels: {app: web}}}
`)
	for i := range 30 {
		taints := ""
		switch {
		case i%10 == 3:
			taints = "  taints: [{key: node.kubernetes.io/unreachable, effect: NoExecute}, {key: node.kubernetes.io/unreachable, effect: NoSchedule}]"
		case i%10 == 4:
			taints = "  taints: [{key: busy, effect: PreferNoSchedule}]"
		}
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Node
metadata:
  name: node-%d
  labels: {kubernetes.io/hostname: node-%d, topology.kubernetes.io/zone: z%d}
spec:
  unschedulable: false
%s
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "20"}}
`, i, i, i%3, taints)
	}
	for i := range 40 {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Pod
metadata:
  name: web-%d
  labels: {app: web}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: u, controller: true}]
spec: {nodeName: node-%d, containers: [{name: c, image: i, resources: {requests: {cpu: 1900m, memory: 1Gi}}}]}
`, i, i%30)
	}
	for app, spec := range []string{
		`topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: a0}}}]`,
		`affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: a1}}}]}}`,
		`affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 10, podAffinityTerm: {topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app: web}}}}]}}`,
		`priorityClassName: high`,
	} {
		fmt.Fprintf(&b, `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: a%d}
spec:
  replicas: 35
  selector: {matchLabels: {app: a%d}}
  template:
    metadata: {labels: {app: a%d}}
    spec:
      containers: [{name: c, image: i, resources: {requests: {cpu: %dm, memory: 1Gi}}}]
      %s
`, app, app, app, 600*(app+1), spec)
	}
	return b.String()
}

// TestAnswerInJSON verifies the field names of the result, which are documented (berth simulate -o
// json) and therefore stable.
func TestAnswerInJSON(t *testing.T) {
	s := run(t, `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {taints: [{key: node.kubernetes.io/unreachable, effect: NoExecute}, {key: node.kubernetes.io/unreachable, effect: NoSchedule}]}
status: {allocatable: {cpu: "2", memory: 4Gi, pods: "110"}}
---
apiVersion: v1
kind: Node
metadata: {name: node-2}
status: {allocatable: {cpu: "2", memory: 4Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: low-1}
spec: {nodeName: node-2, containers: [{name: c, image: i, resources: {requests: {cpu: "2", memory: 1Gi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1}
spec: {priorityClassName: high, containers: [{name: c, image: i, resources: {requests: {cpu: "1", memory: 1Gi}}}]}
`, simulate.Options{Explain: true})
	const want = `{
  "apiVersion": "berth.dev/v1alpha1",
  "kind": "Simulation",
  "pods": [
    {
      "namespace": "default", "name": "web-1",
      "node": "",
      "nominatedNode": "node-2",
      "victims": [{"namespace": "default", "name": "low-1"}],
      "message": "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). preemption: found a potential placement for pod on node node-2, preempting 1 victims",
      "nodes": [
        {"name": "node-1", "feasible": false, "plugin": "TaintToleration", "code": "UntoleratedTaint", "reasons": ["node(s) had untolerated taint(s)"]},
        {"name": "node-2", "feasible": false, "plugin": "NodeResourcesFit", "code": "InsufficientCPU", "reasons": ["Insufficient cpu"]}
      ]
    },
    {
      "namespace": "default", "name": "web-1",
      "node": "node-2",
      "nominatedNode": "",
      "victims": [],
      "message": "",
      "nodes": [
        {"name": "node-1", "feasible": false, "plugin": "TaintToleration", "code": "UntoleratedTaint", "reasons": ["node(s) had untolerated taint(s)"]},
        {"name": "node-2", "feasible": true, "total": 0}
      ]
    }
  ],
  "evictions": [
    {"namespace": "default", "name": "web-0", "node": "node-1", "after": "300s", "taint": "node.kubernetes.io/unreachable:NoExecute"}
  ]
}`
	for _, format := range []string{"json", "yaml"} {
		var b bytes.Buffer
		if err := s.Write(&b, format); err != nil {
			t.Fatal(err)
		}
		var got, expected any
		if err := yaml.Unmarshal(b.Bytes(), &got); err != nil { // also reads JSON
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(want), &expected); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s (- want, + got):\n%s", format, diff)
		}
	}
	var again simulate.Simulation
	if err := json.Unmarshal([]byte(want), &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, &again); diff != "" {
		t.Errorf("read back (- said, + read):\n%s", diff)
	}
}

func TestAnswerForPeople(t *testing.T) {
	s := &simulate.Simulation{
		Pods: []simulate.Pod{
			{Namespace: "default", Name: "urgent", NominatedNode: "node-2", Victims: []simulate.Name{{Namespace: "default", Name: "low-1"}}},
			{Namespace: "default", Name: "urgent", Node: "node-2"},
			{Namespace: "team-a", Name: "big", Message: "0/2 nodes are available: 2 Insufficient cpu."},
		},
		Evictions: []simulate.Eviction{{Namespace: "default", Name: "web-0", Node: "node-1", After: simulate.Seconds(300 * time.Second), Taint: "gone:NoExecute"}},
	}
	var b strings.Builder
	if err := s.Write(&b, ""); err != nil {
		t.Fatal(err)
	}
	want := `NAMESPACE   NAME     NODE     WHY
default     urgent   <none>   preempts on node-2: default/low-1
default     urgent   node-2
team-a      big      <none>   0/2 nodes are available: 2 Insufficient cpu.

EVICTED AFTER   NAMESPACE   NAME    NODE     TAINT
5m              default     web-0   node-1   gone:NoExecute

1 placed, 1 pending, 1 preempted (1.00 per placed pod), 1 evicted
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(- want, + got):\n%s", diff)
	}
}

// TestReasonsAreWrittenOnce verifies that a reason shared by many pods is written once, and only
// some of the pods are named.
func TestReasonsAreWrittenOnce(t *testing.T) {
	const reason = "0/2 nodes are available: 2 Insufficient cpu."
	s := &simulate.Simulation{}
	for i := range 30 {
		s.Pods = append(s.Pods, simulate.Pod{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), Message: reason})
	}
	var short, wide strings.Builder
	if err := s.Write(&short, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(&wide, "wide"); err != nil {
		t.Fatal(err)
	}
	if text := short.String(); strings.Count(text, reason) != 1 || strings.Count(text, "as above") != 9 || !strings.Contains(text, "and 20 more pending for the same reasons") {
		t.Errorf("%s", text)
	}
	if text := wide.String(); strings.Count(text, reason) != 30 || strings.Contains(text, " more") {
		t.Errorf("wide: %s", text)
	}
}

// TestNamesOfPods verifies that pods with the same name in two namespaces are listed twice, and
// that a pod with two decisions is listed once.
func TestNamesOfPods(t *testing.T) {
	s := &simulate.Simulation{Pods: []simulate.Pod{{Namespace: "a", Name: "p"}, {Namespace: "b", Name: "p"}, {Namespace: "a", Name: "p", Node: "n"}}}
	if diff := cmp.Diff([]string{"pod/p", "pod/p"}, s.Names()); diff != "" {
		t.Error(diff)
	}
}

func TestProgressIsTold(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Node\nmetadata: {name: node1}\nstatus: {allocatable: {cpu: \"4000\", memory: 8Ti, pods: \"5000\"}}\n")
	for i := range 3000 {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p%d}\nspec: {containers: [{name: c, image: i}]}\n", i)
	}
	var calls []int
	run(t, b.String(), simulate.Options{Progress: func(decided, pods int) {
		if pods != 3000 {
			t.Fatalf("%d pods", pods)
		}
		calls = append(calls, decided)
	}})
	if diff := cmp.Diff([]int{1024, 2048}, calls); diff != "" {
		t.Error(diff)
	}
}

// BenchmarkLargeCluster measures 10,000 nodes and 100,000 pods, from YAML to the result.
func BenchmarkLargeCluster(b *testing.B) {
	text := largeCluster(10_000, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		set := read(b, text)
		s, err := simulate.Run(set, simulate.Options{Seed: 1, Discard: true})
		if err != nil {
			b.Fatal(err)
		}
		if t := s.Totals(); t.Placed != 100_000 {
			b.Fatalf("%+v", t)
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/(1<<20), "MiB-from-system")
}

// BenchmarkOpen opens a world of 5,000 nodes and 50,000 placed pods, like a request about a
// cluster.
func BenchmarkOpen(b *testing.B) {
	set := read(b, largeCluster(5000, 50_000))
	for i, pod := range set.Pods {
		pod.Spec.NodeName = fmt.Sprintf("node-%d", i%5000)
	}
	for b.Loop() {
		w, err := simulate.Open(set, simulate.Options{Seed: 1})
		if err != nil {
			b.Fatal(err)
		}
		if c := w.Cluster(); c.Node("node-0") == nil {
			b.Fatal("there is no node-0")
		}
	}
}

func largeCluster(nodes, pods int) string {
	var b strings.Builder
	for i := range nodes {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Node
metadata:
  name: node-%d
  labels:
    kubernetes.io/hostname: node-%d
    topology.kubernetes.io/zone: z%d
status:
  allocatable:
    cpu: "32"
    memory: 64Gi
    pods: "110"
---
`, i, i, i%3)
	}
	for i := range pods {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Pod
metadata:
  name: pod-%d
  namespace: default
  labels:
    app: app-%d
spec:
  containers:
  - name: app
    image: registry.example.com/app:1.27
    resources:
      requests:
        cpu: 100m
        memory: 200Mi
---
`, i, i%10)
	}
	return b.String()
}
