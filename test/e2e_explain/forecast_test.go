// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// workloads contains the workloads of the test. Their priority classes determine the order of
// pending pods, which would otherwise be random, and disable preemption.
const workloads = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: third}
value: 100
preemptionPolicy: Never
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: second-last}
value: 150
preemptionPolicy: Never
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: second}
value: 200
preemptionPolicy: Never
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: first}
value: 300
preemptionPolicy: Never
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: forecast}
spec:
  replicas: 8
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      priorityClassName: third
      tolerations:
      - {key: soon, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 3}
      containers: [{name: c, image: nginx, resources: {requests: {cpu: "7"}}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: big, namespace: forecast}
spec:
  replicas: 4
  selector: {matchLabels: {app: big}}
  template:
    metadata: {labels: {app: big}}
    spec:
      terminationGracePeriodSeconds: 0
      priorityClassName: second
      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: big}}}]}}
      containers: [{name: c, image: nginx, resources: {requests: {cpu: "15"}}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: forecast}
spec:
  serviceName: db
  podManagementPolicy: Parallel
  replicas: 3
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      priorityClassName: first
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: db}}}]
      containers: [{name: c, image: nginx, resources: {requests: {cpu: "6"}}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: log, namespace: forecast}
spec:
  serviceName: log
  replicas: 3
  selector: {matchLabels: {app: log}}
  template:
    metadata: {labels: {app: log}}
    spec:
      terminationGracePeriodSeconds: 0
      priorityClassName: second-last
      containers: [{name: c, image: nginx, resources: {requests: {cpu: "5"}}}]
`

// TestForecastsComeTrue verifies forecasts of random operations. It performs each operation and
// compares, pod by pod, the pods that leave and their times, the successors and their nodes, and
// the pending pods. It fails if too few pods agree.
func TestForecastsComeTrue(t *testing.T) {
	f := &fortune{
		T: t, random: rand.New(rand.NewPCG(*seed, 0)), reasons: map[string]int{}, marked: map[types.UID]time.Time{},
	}
	_, _ = berth(t, "", "kubectl", "create", "namespace", "forecast")
	all := workloads
	if *troubled {
		all, f.trouble = workloads+slow, &trouble{}
	}
	sh(t, "kubectl apply -f - <<'END'\n"+all+"END")
	t.Cleanup(func() {
		_, _ = berth(t, "", "kubectl", "delete", "namespace", "forecast", "--timeout=60s")
		openNodes(t)
	})
	f.watch()
	f.quiet()
	for i := range *operations {
		f.disturb()
		f.one(i)
		if i%50 == 49 {
			t.Logf("so far %d operations, %d of %d pods agree", i+1, f.agreed, f.compared)
		}
	}
	if f.trouble != nil {
		t.Logf("in the midst of: %s", f.trouble)
	}
	t.Logf("%d operations, %d pods compared: %d agree (%.2f%%), of the others: %v; looks took up to %v", *operations, f.compared, f.agreed,
		100*float64(f.agreed)/float64(f.compared), f.reasons, f.slowest)
	least := 99 // percent
	if *operations < 100 {
		least = 90 // with few operations, some random choices have a large weight
	}
	if f.agreed*100 < f.compared*least {
		t.Errorf("only %d of %d agree", f.agreed, f.compared)
	}
}

type fortune struct {
	*testing.T
	random   *rand.Rand
	compared int
	agreed   int
	reasons  map[string]int

	trouble *trouble      // nil if only the operations change the cluster
	pace    time.Duration // recent time to read the cluster; slowest is its maximum
	slowest time.Duration

	mu     sync.Mutex
	marked map[types.UID]time.Time // time at which a pod's deletion was first observed
}

// openNodes reverts the changes to nodes, because other tests use them.
func openNodes(t *testing.T) {
	nodes, err := client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		patch := []byte(`{"spec": {"unschedulable": null, "taints": null}}`)
		if _, err := client.CoreV1().Nodes().Patch(context.Background(), n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// operation is an operation that can be forecast (step) and performed with kubectl (line).
type operation struct {
	step whatif.Step
	line string
}

func (f *fortune) operation() operation {
	node := fmt.Sprintf("node-%d", 1+f.random.IntN(6))
	nodes := simulate.Nodes{Node: node}
	op := func(line string, o simulate.Operation) operation {
		return operation{whatif.Step{Words: line, Operation: &o}, line}
	}
	switch f.random.IntN(9) {
	case 0:
		return op("kubectl taint --overwrite nodes "+node+" now=x:NoExecute", simulate.Operation{Taint: &simulate.Tainting{Nodes: nodes, Taints: []string{"now=x:NoExecute"}}})
	case 1:
		return op("kubectl taint --overwrite nodes "+node+" soon=x:NoExecute off:NoSchedule", simulate.Operation{Taint: &simulate.Tainting{Nodes: nodes, Taints: []string{"soon=x:NoExecute", "off:NoSchedule"}}})
	case 2:
		line := "kubectl drain " + node + " --force --ignore-daemonsets --timeout=2m"
		if f.trouble != nil && node == f.trouble.silent { // otherwise kubectl would wait for pods that never end
			line = fmt.Sprintf("kubectl drain %s --force --ignore-daemonsets --timeout=%s >/dev/null 2>&1 || true", node, f.stretch(2*time.Second))
		}
		return op(line, simulate.Operation{Drain: &simulate.Drain{Nodes: nodes, Force: true, IgnoreDaemonSets: true}})
	case 3, 4:
		lines := []string{"kubectl uncordon " + node}
		for _, key := range []string{"now", "soon", "off"} {
			lines = append(lines, "kubectl taint nodes "+node+" "+key+"- || true")
		}
		o := op(strings.Join(lines, "; "), simulate.Operation{Uncordon: &nodes})
		return o
	case 5:
		n := 3 + f.random.IntN(9)
		return op(fmt.Sprintf("kubectl scale -n forecast deployment/web --replicas=%d", n), simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Namespace: "forecast", Replicas: n}})
	case 6:
		n := 1 + f.random.IntN(4)
		return op(fmt.Sprintf("kubectl scale -n forecast statefulset/log --replicas=%d", n), simulate.Operation{Scale: &simulate.Scale{Workload: "statefulset/log", Namespace: "forecast", Replicas: n}})
	case 7:
		return op("kubectl cordon "+node, simulate.Operation{Cordon: &nodes})
	}
	for _, p := range f.pods() {
		if p.DeletionTimestamp != nil {
			continue
		}
		return op("kubectl delete pod --wait=false -n forecast "+p.Name, simulate.Operation{Delete: &simulate.Delete{Object: "pod/" + p.Name, Namespace: "forecast"}})
	}
	return f.operation()
}

// one forecasts an operation, performs it, and compares the results.
func (f *fortune) one(number int) {
	o := f.operation()
	steps := []whatif.Step{o.step}
	if o.step.Uncordon != nil {
		steps = append(steps, whatif.Step{Words: "untaint", Operation: &simulate.Operation{Untaint: &simulate.Tainting{Nodes: *o.step.Uncordon, Taints: []string{"now", "soon", "off"}}}})
	}
	t := &trial{number: number, line: o.line, before: f.pods()}
	f.foretell(t, steps, 0)
	if f.trouble != nil {
		if limit := horizon(t.forecast); limit > 0 {
			f.foretell(t, steps, limit)
		}
	}
	t.forecast.Leaving = append(t.forecast.Leaving, t.forecast.Anyway...) // the cluster does not show why a pod leaves
	t.began = time.Now()
	sh(f.T, o.line)
	t.done = time.Now()
	<-time.After(time.Until(t.began.Add(time.Duration(t.forecast.For))))
	f.quiet()
	missed := f.compared - f.agreed
	if f.compare(t); f.compared-f.agreed > missed {
		f.keep(t)
	}
}

// trial is a performed operation with its forecast.
type trial struct {
	number   int
	line     string
	before   map[types.UID]*v1.Pod
	read     *snapshot.Snapshot
	manifest []byte // the objects in read as a manifest, if -misses is set
	forecast *whatif.Forecast

	began, done time.Time // start and end of the operation
}

// foretell reads the cluster and makes a forecast, up to limit or, if limit is 0, until nothing
// more happens.
func (f *fortune) foretell(t *trial, steps []whatif.Step, limit time.Duration) {
	f.Helper()
	t.read = f.read()
	if *misses != "" {
		t.manifest = manifestOf(f, t.read.Set.Objects())
	}
	w, err := simulate.Open(t.read.Set, simulate.Options{Now: t.read.AsOf.Time, Seed: 1})
	if err != nil {
		f.Fatal(err)
	}
	if t.forecast, err = whatif.Run(w, steps, whatif.Options{For: limit}); err != nil {
		f.Fatalf("%s: %v", steps[0].Words, err)
	}
}

// read reads the cluster as what-if does.
func (f *fortune) read() *snapshot.Snapshot {
	f.Helper()
	reader, err := snapshot.NewClient(config)
	if err != nil {
		f.Fatal(err)
	}
	s, err := reader.Read(f.Context(), nil)
	if err != nil {
		f.Fatal(err)
	}
	return s
}
