package e2eexplain

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// The classes say who of those that wait goes first, and let nobody preempt: which of two equals
// goes first is chance.
const workloads = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: third}
value: 100
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
`

// stillness is how long nothing may change for a cluster to be called quiet: several times what a
// controller needs to react, and longer than a pod is in back-off.
const stillness = 1200 * time.Millisecond

// Random operations are forecast, then done; what is compared is, pod by pod, who left, when, who
// came in its place where, and who waits. The test says which share agrees, and fails below a
// limit.
func TestForecastsComeTrue(t *testing.T) {
	f := &fortune{T: t, random: rand.New(rand.NewPCG(*seed, 0)), marked: map[types.UID]time.Time{}}
	_, _ = berth(t, "", "kubectl", "create", "namespace", "forecast")
	all, pods := workloads, 15
	if *troubled {
		all, pods, f.trouble = workloads+slow, 21, &trouble{}
	}
	sh(t, "kubectl apply -f - <<'END'\n"+all+"END")
	t.Cleanup(func() { _, _ = berth(t, "", "kubectl", "delete", "namespace", "forecast", "--timeout=60s") })
	f.watch()
	within(t, 60*time.Second, "the workloads are there", func() bool { return len(f.pods()) == pods })
	f.quiet(stillness)
	for i := range *operations {
		f.disturb()
		f.one(i)
	}
	if f.trouble != nil {
		t.Logf("in the midst of: %s", f.trouble)
	}
	t.Logf("%d operations, %d pods compared: %d agree (%.2f%%), of the others: %v", *operations, f.compared, f.agreed, 100*float64(f.agreed)/float64(f.compared), f.reasons)
	least := 99 // percent
	if *operations < 100 {
		least = 90 // a few operations in which chance decides weigh much when there are only ten
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

	trouble *trouble // nil: nothing happens but the operations

	mu     sync.Mutex
	marked map[types.UID]time.Time // when a pod was first seen leaving
}

// watch notes when pods begin to leave.
func (f *fortune) watch() {
	f.reasons = map[string]int{}
	w, err := client.CoreV1().Pods("forecast").Watch(f.Context(), metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	go func() {
		for e := range w.ResultChan() {
			p, ok := e.Object.(*v1.Pod)
			if !ok {
				return
			}
			if e.Type == "DELETED" || p.DeletionTimestamp != nil {
				f.mu.Lock()
				if _, known := f.marked[p.UID]; !known {
					f.marked[p.UID] = time.Now()
				}
				f.mu.Unlock()
			}
		}
	}()
	f.Cleanup(w.Stop)
}

func (f *fortune) pods() map[types.UID]*v1.Pod {
	list, err := client.CoreV1().Pods("forecast").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	pods := map[types.UID]*v1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].UID] = &list.Items[i]
	}
	return pods
}

// quiet waits until nothing changes any more: every pod runs or has been found to fit nowhere, for
// a time.
func (f *fortune) quiet(during time.Duration) {
	f.Helper()
	since, before := time.Now(), ""
	within(f, 60*time.Second, "the cluster is quiet", func() bool {
		var words []string
		now := metav1.Now()
		for uid, p := range f.pods() {
			waits := slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
				return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse
			})
			silent := f.trouble != nil && p.Spec.NodeName != "" && p.Spec.NodeName == f.trouble.silent
			switch {
			case p.DeletionTimestamp != nil && (f.trouble == nil || !silent && p.DeletionTimestamp.Before(&now)):
				since = time.Now() // on its way out, and due
			case p.DeletionTimestamp == nil && p.Status.Phase != v1.PodRunning && !waits && !silent:
				since = time.Now()
			}
			words = append(words, fmt.Sprint(uid, p.Spec.NodeName, p.DeletionTimestamp))
		}
		slices.Sort(words)
		if picture := strings.Join(words, " "); picture != before {
			since, before = time.Now(), picture
		}
		return time.Since(since) > during
	})
}

// awaitBackoff waits until as many pods wait as was foretold, or for as long as the scheduler lets
// a pod wait after a failed attempt.
func (f *fortune) awaitBackoff(pending int) {
	f.Helper()
	const longest = 3 * time.Second
	for end := time.Now().Add(longest); ; {
		f.quiet(stillness)
		waiting := 0
		for _, p := range f.pods() {
			if p.Spec.NodeName == "" {
				waiting++
			}
		}
		if waiting == pending || time.Now().After(end) {
			return
		}
		<-time.After(200 * time.Millisecond)
	}
}

// operation is something that can be forecast, and done with kubectl.
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
	switch f.random.IntN(8) {
	case 0:
		return op("kubectl taint --overwrite nodes "+node+" now=x:NoExecute", simulate.Operation{Taint: &simulate.Tainting{Nodes: nodes, Taints: []string{"now=x:NoExecute"}}})
	case 1:
		return op("kubectl taint --overwrite nodes "+node+" soon=x:NoExecute off:NoSchedule", simulate.Operation{Taint: &simulate.Tainting{Nodes: nodes, Taints: []string{"soon=x:NoExecute", "off:NoSchedule"}}})
	case 2:
		line := "kubectl drain " + node + " --force --ignore-daemonsets --timeout=20s"
		if f.trouble != nil && node == f.trouble.silent { // kubectl would wait for pods that nobody ends
			line = "kubectl drain " + node + " --force --ignore-daemonsets --timeout=2s >/dev/null 2>&1 || true"
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

// one forecasts and does an operation, and compares.
func (f *fortune) one(number int) {
	o := f.operation()
	steps := []whatif.Step{o.step}
	if o.step.Uncordon != nil {
		steps = append(steps, whatif.Step{Words: "untaint", Operation: &simulate.Operation{Untaint: &simulate.Tainting{Nodes: *o.step.Uncordon, Taints: []string{"now", "soon", "off"}}}})
	}
	before := f.pods()
	forecast := f.foretell(steps, 0)
	if f.trouble != nil {
		if limit := horizon(forecast); limit > 0 {
			forecast = f.foretell(steps, limit)
		}
	}
	forecast.Leaving = append(forecast.Leaving, forecast.Anyway...) // reality does not tell them apart
	began := time.Now()
	sh(f.T, o.line)
	done := time.Since(began)
	if left := time.Duration(forecast.For) - done; left > 0 {
		<-time.After(left)
	}
	f.awaitBackoff(len(forecast.Pending))
	f.compare(number, o.line, forecast, before, began, done)
}

// foretell reads the cluster and forecasts; so much time passes, or all until nothing more happens.
func (f *fortune) foretell(steps []whatif.Step, limit time.Duration) *whatif.Forecast {
	f.Helper()
	reader, err := snapshot.NewClient(config)
	if err != nil {
		f.Fatal(err)
	}
	s, err := reader.Read(f.Context(), nil)
	if err != nil {
		f.Fatal(err)
	}
	w, err := simulate.Open(s.Set, simulate.Options{Now: s.AsOf.Time, Seed: 1})
	if err != nil {
		f.Fatal(err)
	}
	forecast, err := whatif.Run(w, steps, whatif.Options{For: limit})
	if err != nil {
		f.Fatalf("%s: %v", steps[0].Words, err)
	}
	return forecast
}

func (f *fortune) compare(number int, line string, forecast *whatif.Forecast, before map[types.UID]*v1.Pod, began time.Time, took time.Duration) {
	now := f.pods()
	leaving := map[string]*whatif.Leaving{}
	for i := range forecast.Leaving {
		if l := &forecast.Leaving[i]; l.Namespace == "forecast" {
			leaving[l.Name] = l
		}
	}
	differs := func(name, reason, format string, args ...any) {
		f.reasons[reason]++
		f.Logf("operation %d, %s: %s: %s", number, line, name, fmt.Sprintf(format, args...))
	}
	waited, found := map[string]int{}, map[string]int{}
	for uid, p := range before {
		f.compared++
		after, there := now[uid]
		stays := there && after.DeletionTimestamp == nil
		l := leaving[p.Name]
		f.mu.Lock()
		gone := f.marked[uid].Sub(began)
		f.mu.Unlock()
		switch {
		case p.DeletionTimestamp != nil: // it was on its way out; has it ended?
			if there == (l == nil) {
				f.agreed++
			} else {
				differs(p.Name, "who has ended", "still there: %t, forecast: %+v", there, l)
			}
		case stays && p.Spec.NodeName == "" && l == nil:
			// The pods of a workload that wait are all alike: how many of them found a node is what
			// counts.
			waited[app(p.Name)]++
			if after.Spec.NodeName != "" {
				found[app(p.Name)]++
			}
		case stays != (l == nil) && !(p.Spec.NodeName == "" && l == nil):
			differs(p.Name, "who leaves", "stays: %t, forecast: %+v", stays, l)
		case l != nil && (gone < time.Duration(l.After)-2*time.Second || gone > time.Duration(l.After)+2*time.Second+took):
			differs(p.Name, "when", "left after %v, forecast %s", gone, l.After)
		default:
			f.agreed++
		}
	}
	for name, count := range waited {
		said := 0
		for _, p := range forecast.Placed {
			if p.Before && app(p.Name) == name {
				said++
			}
		}
		off := min(max(said-found[name], found[name]-said), count)
		f.agreed += count - off
		for range off {
			differs(name, "how many that waited are placed", "%d of %d, forecast %d", found[name], count, said)
		}
	}
	f.compareNew(differs, forecast, before, now)
}

// app is the workload that made a pod.
func app(name string) string { return strings.SplitN(name, "-", 2)[0] }

// compareNew compares the pods that came, by who made them: their names are chance.
func (f *fortune) compareNew(differs func(name, reason, format string, args ...any), forecast *whatif.Forecast, before, now map[types.UID]*v1.Pod) {
	said, came := map[string][]string{}, map[string][]string{}
	renewed := func(name string) bool { // deleted while it waited, and made again under its name
		return slices.ContainsFunc(slices.Collect(maps.Values(now)), func(p *v1.Pod) bool { return p.Name == name && before[p.UID] == nil })
	}
	for _, l := range forecast.Leaving {
		if l.Next != nil && !f.leftAgain(forecast, l.Next.Name) {
			said[app(l.Name)] = append(said[app(l.Name)], l.Next.Node)
		}
	}
	for _, p := range forecast.Placed {
		if !p.Before || renewed(p.Name) {
			said[app(p.Name)] = append(said[app(p.Name)], p.Node)
		}
	}
	for _, p := range forecast.Pending {
		if (!p.Before || renewed(p.Name)) && !slices.ContainsFunc(forecast.Leaving, func(l whatif.Leaving) bool { return l.Next != nil && l.Next.Name == p.Name }) {
			said[app(p.Name)] = append(said[app(p.Name)], "")
		}
	}
	for uid, p := range now {
		if before[uid] == nil && p.DeletionTimestamp == nil {
			came[app(p.Name)] = append(came[app(p.Name)], p.Spec.NodeName)
			f.compared++
			switch nodes := said[app(p.Name)]; {
			case slices.Contains(nodes, p.Spec.NodeName):
				f.agreed++
				i := slices.Index(nodes, p.Spec.NodeName)
				said[app(p.Name)] = slices.Delete(nodes, i, i+1)
			case p.Spec.NodeName != "" && slices.ContainsFunc(nodes, func(n string) bool { return n != "" }) && f.amongTheBest(p):
				f.agreed++ // chance decided between equals
				i := slices.IndexFunc(nodes, func(n string) bool { return n != "" })
				said[app(p.Name)] = slices.Delete(nodes, i, i+1)
			default:
				differs(p.Name, "where", "came to %q, forecast %q", p.Spec.NodeName, nodes)
			}
		}
	}
}

func (f *fortune) leftAgain(forecast *whatif.Forecast, name string) bool {
	return slices.ContainsFunc(forecast.Leaving, func(l whatif.Leaving) bool { return l.Name == name && l.Again })
}

// amongTheBest tells whether the pod's node is one that it could well have been given, as the
// cluster is now: nearly the highest score, since others have come after it.
func (f *fortune) amongTheBest(p *v1.Pod) bool {
	reader, err := snapshot.NewClient(config)
	if err != nil {
		f.Fatal(err)
	}
	s, err := reader.Read(f.Context(), nil)
	if err != nil {
		f.Fatal(err)
	}
	w, err := simulate.Open(s.Set, simulate.Options{Now: s.AsOf.Time})
	if err != nil {
		f.Fatal(err)
	}
	found, ok := w.Find(p.Namespace, p.Name)
	if !ok || found.Pod == nil {
		return false
	}
	node := found.Pod.Node
	w.Cluster().RemovePod(found.Pod.UID)
	object := *found.Object
	object.Spec.NodeName = ""
	e := decide.NewPlain(w.Cluster(), plugins.Default()).Evaluate(w.Cluster().Pending(&object))
	v, best := e.Verdict(node), e.Best()
	const others = 60 // what pods that came after it can have changed
	return v != nil && v.Rejection == nil && len(best) > 0 && best[0].Total-v.Total <= others
}
