// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// town returns a cluster of nodes with the given numbers of pods, all of one ReplicaSet.
func town(cpu string, pods ...int) []metav1.Object {
	yes := true
	var objects []metav1.Object
	for i, count := range pods {
		name := fmt.Sprintf("node-%d", i)
		objects = append(objects, &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{v1.LabelHostname: name}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
			}},
		})
		for j := range count {
			pod := fmt.Sprintf("web-%d-%d", i, j)
			objects = append(objects, &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: pod, GenerateName: "web-", UID: types.UID(pod), ResourceVersion: "1", Labels: map[string]string{"app": "web"},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}},
				},
				Spec: v1.PodSpec{
					NodeName: name, SchedulerName: v1.DefaultSchedulerName,
					Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}},
				},
			})
		}
	}
	return objects
}

func forecast(t testing.TB, objects []metav1.Object, steps ...whatif.Step) *whatif.Forecast {
	t.Helper()
	w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := whatif.Run(w, steps, whatif.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTheCheapestNodesAreChosen verifies that the nodes with the fewest pods to move are chosen,
// unless these pods fit nowhere else.
func TestTheCheapestNodesAreChosen(t *testing.T) {
	choose := func(cpu string, count int, pods ...int) (names []string) {
		f := forecast(t, town(cpu, pods...), whatif.Step{Choose: count, Drain: &simulate.Drain{}})
		for _, c := range f.Chosen {
			names = append(names, fmt.Sprintf("%s pending %d", c.Node, c.Pending))
		}
		return names
	}
	if got := fmt.Sprint(choose("8", 2, 5, 1, 3, 2)); got != "[node-1 pending 0 node-2 pending 0]" {
		t.Errorf("with room elsewhere, where the pod of the first goes to node-3: %s", got)
	}
	if got := fmt.Sprint(choose("4", 1, 4, 4, 4, 1)); got != "[node-3 pending 1]" {
		t.Errorf("the others are full: one pod has no place whichever goes, so it is the one with the fewest to move: %s", got)
	}
}

// TestTheCheapestOfTheSelectedNodesAreChosen verifies that a selector restricts the choice to the
// selected nodes.
func TestTheCheapestOfTheSelectedNodesAreChosen(t *testing.T) {
	selected := &simulate.Drain{Nodes: simulate.Nodes{Selector: "kubernetes.io/hostname in (node-0, node-2)"}}
	f := forecast(t, town("8", 5, 1, 3, 2), whatif.Step{Choose: 1, Drain: selected})
	if len(f.Chosen) != 1 || f.Chosen[0].Node != "node-2" {
		t.Errorf("chosen: %+v", f.Chosen)
	}
}

// TestWhatWaitsIsTriedFirst verifies that events that happen anyway are not attributed to the
// operation: a waiting pod that fits is placed first.
func TestWhatWaitsIsTriedFirst(t *testing.T) {
	objects := town("4", 1, 1)
	waits := objects[len(objects)-1].(*v1.Pod).DeepCopy()
	waits.Name, waits.UID, waits.Spec.NodeName = "waits", "waits", ""
	f := forecast(t, append(objects, waits), whatif.Step{Operation: &simulate.Operation{Cordon: &simulate.Nodes{Node: "node-0"}}})
	if len(f.Placed) > 0 || len(f.Pending) > 0 || len(f.Leaving) > 0 {
		t.Errorf("%+v", f)
	}
}

// TestVictimsOfPendingPodsLeaveAnyway verifies that preemption by a pending pod is not attributed
// to the operation.
func TestVictimsOfPendingPodsLeaveAnyway(t *testing.T) {
	objects := town("1", 1, 1)
	urgent, priority := objects[1].(*v1.Pod).DeepCopy(), int32(10)
	urgent.Name, urgent.UID, urgent.Spec.NodeName, urgent.Spec.Priority = "urgent", "urgent", "", &priority
	f := forecast(t, append(objects, urgent), whatif.Step{Operation: &simulate.Operation{Uncordon: &simulate.Nodes{Node: "node-0"}}})
	if len(f.Leaving) > 0 || len(f.Anyway) != 1 || f.Anyway[0].Cause != simulate.ByPreemption || f.Anyway[0].Detail != "default/urgent" {
		t.Errorf("anyway %+v, leaving %+v", f.Anyway, f.Leaving)
	}
}

// TestADrainWaitsForBudgets verifies that a budget lets pods leave one by one, each after the
// replacement of the previous pod runs. kubectl retries every five seconds.
func TestADrainWaitsForBudgets(t *testing.T) {
	objects := town("8", 3, 0)
	set := manifest.Assemble("test", objects)
	w, err := simulate.Open(set, simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	budget, err := manifest.Read([]string{"testdata/budget.yaml"}, nil, manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(budget); err != nil {
		t.Fatal(err)
	}
	f, err := whatif.Run(w, []whatif.Step{{Operation: &simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-0"}}}}}, whatif.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var after []string
	for _, l := range f.Leaving {
		after = append(after, l.After.String()+" "+l.Next.Node)
	}
	if got := fmt.Sprint(after); got != "[0s node-1 5s node-1 10s node-1]" {
		t.Errorf("they leave after %s", got)
	}
	if !f.Holds("pdb") || f.Holds("pending") || len(f.Drains[0].Waited) != 2 || len(f.Drains[0].Blocked) != 0 {
		t.Errorf("%+v, %+v", f.Drains, f.Budgets)
	}
}

// BenchmarkChoose finds the cheapest ten of 5,000 nodes to lose, with 50,000 pods on them. It
// excludes the time to read them.
func BenchmarkChoose(b *testing.B) {
	counts := make([]int, 5000)
	for i := range counts {
		counts[i] = 5 + i*7%11
	}
	for b.Loop() {
		b.StopTimer()
		w, err := simulate.Open(manifest.Assemble("bench", town("16", counts...)), simulate.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		began := time.Now()
		f, err := whatif.Run(w, []whatif.Step{{Choose: 10, Drain: &simulate.Drain{}}}, whatif.Options{})
		if err != nil || len(f.Chosen) != 10 {
			b.Fatal(err, f)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/choice")
	}
}

// TestPendingPodsGoBeforeReplacements verifies that a pod pending for a long time gets the room
// freed by an operation, even if it has a lower priority: it is not in back-off, and is tried
// before a controller has created another pod.
func TestPendingPodsGoBeforeReplacements(t *testing.T) {
	never := v1.PreemptNever
	for _, priority := range []int32{10, -10} {
		objects := town("1", 1)
		pending := objects[1].(*v1.Pod).DeepCopy()
		pending.Name, pending.UID, pending.Spec.NodeName, pending.Spec.Priority, pending.Spec.PreemptionPolicy = "pending", "pending", "", &priority, &never
		f := forecast(t, append(objects, pending), whatif.Step{Operation: &simulate.Operation{Delete: &simulate.Delete{Object: "pod/web-0-0"}}})
		if len(f.Placed) != 1 || f.Placed[0].Name != "pending" || len(f.Pending) != 1 {
			t.Errorf("priority %d: placed: %+v, pending: %+v", priority, f.Placed, f.Pending)
		}
	}
}

// TestNamesOfForecast verifies that a pod is listed once if it leaves and returns pending under the
// same name, in addition to a pod with that name in another namespace.
func TestNamesOfForecast(t *testing.T) {
	f := &whatif.Forecast{
		Leaving: []whatif.Leaving{{Namespace: "a", Name: "db-0"}},
		Pending: []whatif.Waiting{{Namespace: "a", Name: "db-0"}, {Namespace: "b", Name: "db-0"}, {Namespace: "b", Name: "other", Anyway: true}},
	}
	if got := fmt.Sprint(f.Names()); got != "[pod/db-0 pod/db-0]" {
		t.Error(got)
	}
}

// TestAForecastInWhichNobodyLeavesHasAListOfThem verifies that Leaving is an empty list rather than
// null: readers of JSON, such as the dashboard, iterate over it.
func TestAForecastInWhichNobodyLeavesHasAListOfThem(t *testing.T) {
	w, err := simulate.Open(manifest.Assemble("test", town("1", 1)), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cordon := simulate.Operation{Cordon: &simulate.Nodes{Nodes: []string{"node-0"}}}
	f, err := whatif.Run(w, []whatif.Step{{Operation: &cordon}}, whatif.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(f); err != nil || !strings.Contains(string(text), `"leaving":[]`) {
		t.Errorf("%v: %s", err, text)
	}
}

// TestAPodThatReturnsIsListedOnce verifies that a pod that tolerates a taint for 30 s, and returns
// to the tainted node each time, is listed once regardless of the horizon, and that a later
// departure of another pod does not hide the interval.
func TestAPodThatReturnsIsListedOnce(t *testing.T) {
	objects, seconds := town("1", 1), int64(30)
	first := objects[1].(*v1.Pod)
	first.Spec.Tolerations = []v1.Toleration{{Key: "old", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds}}
	objects = append(objects, town("1", 0, 1)[1:]...)
	other, hour := objects[3].(*v1.Pod), int64(3660)
	other.OwnerReferences, other.Spec.Containers[0].Resources = nil, v1.ResourceRequirements{}
	other.Spec.Tolerations = []v1.Toleration{{Key: "old", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &hour}}
	first.Spec.NodeSelector = map[string]string{v1.LabelHostname: "node-0"}
	taint := simulate.Operation{Taint: &simulate.Tainting{Nodes: simulate.Nodes{Nodes: []string{"node-0", "node-1"}}, Taints: []string{"old=yes:NoExecute"}}}
	for _, span := range []time.Duration{0, time.Hour} {
		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f, err := whatif.Run(w, []whatif.Step{{Operation: &taint}}, whatif.Options{For: span})
		if err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		for _, l := range f.Leaving {
			count[l.Controller]++
			if l.Controller != "" && l.Every != simulate.Seconds(30*time.Second) {
				t.Errorf("for %s: it leaves every %v", span, l.Every)
			}
		}
		for _, e := range f.Later {
			if e.Name != other.Name {
				t.Errorf("for %s: %s is said to leave once more", span, e.Name)
			}
		}
		if count["ReplicaSet/web"] != 1 {
			t.Errorf("for %s: listed: %v", span, count)
		}
	}
}

// TestPressureEvictsAsTheKubelet verifies that under pressure the pod with the highest usage above
// its request leaves with the kubelet's message, and returns after the taint's removal.
func TestPressureEvictsAsTheKubelet(t *testing.T) {
	for _, memory := range []string{"1Gi", "50Mi"} {
		press := simulate.Operation{Pressure: &simulate.Pressure{Nodes: simulate.Nodes{Node: "node-0"}, Memory: memory}}
		use := simulate.Operation{Use: &simulate.Use{Pod: "pod/web-0-1", Memory: "300Mi"}}
		f := forecast(t, town("4", 2), whatif.Step{Operation: &use}, whatif.Step{Operation: &press})
		if memory == "1Gi" {
			if len(f.Leaving) > 0 {
				t.Errorf("with %s left: %+v", memory, f.Leaving)
			}
			continue
		}
		if len(f.Leaving) != 1 {
			t.Fatalf("with %s left: %+v", memory, f.Leaving)
		}
		const message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c was using 300Mi, request is 0, has larger consumption of memory."
		if l := f.Leaving[0]; l.Name != "web-0-1" || l.Cause != simulate.ByPressure || l.Detail != message || l.After != simulate.Seconds(time.Second) {
			t.Errorf("%+v", l)
		}
		if next := f.Leaving[0].Next; next == nil || next.Node != "node-0" || f.For != simulate.Seconds(310*time.Second) || !f.Holds("evicted") {
			t.Errorf("it comes back when the taint is gone: %+v", f)
		}
	}
}

// TestAForecastWithAPlanSaysTheRestAsWell verifies that a plan of new nodes names the pods that
// find a node, and that the other parts of the forecast are printed as well.
func TestAForecastWithAPlanSaysTheRestAsWell(t *testing.T) {
	leaving := func(name string) whatif.Leaving {
		return whatif.Leaving{Namespace: "default", Name: name, Node: "node-1"}
	}
	f := &whatif.Forecast{
		Provision: &provision.Plan{}, Source: simulate.Source{From: "town.yaml"}, Notes: []string{"the forecast ends after 1h"},
		Budgets: []whatif.Budget{{Namespace: "default", Name: "web", Blocks: true, Pods: []string{"web-0"}}},
		Later:   []simulate.Eviction{{Namespace: "default", Name: "web-1"}},
		Anyway:  []whatif.Leaving{leaving("web-2")}, Spared: []whatif.Leaving{leaving("web-3")},
	}
	var text strings.Builder
	if err := f.Write(&text, ""); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"no node is needed", "note: the forecast ends after 1h", "web holds back web-0", "1 more pod is evicted later",
		"default/web-2", "default/web-3", "town.yaml", "Nothing was written."} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("%q is missing in\n%s", part, text.String())
		}
	}
}
