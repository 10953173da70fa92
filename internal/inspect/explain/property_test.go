// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestSuggestedChangesLetThePodRun verifies that every suggestion lets the pod run when applied as
// published (the patch, the deletions, the new node), and that the search suggests no pair if a
// single change is enough.
func TestSuggestedChangesLetThePodRun(t *testing.T) {
	const towns = 300
	pending, helped, suggested, withheld := 0, 0, 0, 0
	kinds := map[string]int{}
	for seed := range uint64(towns) {
		objects := town(seed)
		e := explained(t, objects, "waits")
		if e.State != explain.Pending && (e.State != explain.Gated || e.Feasible > 0) {
			continue
		}
		pending++
		withheld += len(e.Withheld)
		if len(e.Suggestions) > 0 {
			helped++
		}
		deletions := map[string]string{}
		for _, s := range e.Suggestions {
			suggested++
			if names := deletedOnly(s); names != "" {
				if other := deletions[names]; other != "" {
					t.Errorf("town %d: %q and %q delete the same pods", seed, s.Text, other)
				}
				deletions[names] = s.Text
			}
			for _, c := range s.Changes {
				kinds[c.Kind]++
			}
			after, possible := applied(t, objects, &s)
			if !possible {
				continue
			}
			if again := explained(t, after, "waits"); again.State != explain.Schedulable && again.State != explain.Placed && !(again.Preemption != nil && again.Preemption.Helps) {
				t.Errorf("town %d: %q does not help: %s", seed, s.Text, again.Summary)
			}
		}
	}
	t.Logf("%d of %d towns with a pending pod: suggestions for %d, %d in all: %v; %d withheld", pending, towns, helped, suggested, kinds, withheld)
	if pending < towns/3 || helped < pending*2/3 || withheld < towns/10 {
		t.Errorf("%d pending, of which %d were helped: the generator or the search is too weak", pending, helped)
	}
}

// deletedOnly names the pods deleted by a suggestion that makes no other change.
func deletedOnly(s explain.Suggestion) string {
	var names []string
	for _, c := range s.Changes {
		if len(c.Delete) == 0 {
			return ""
		}
		for _, n := range c.Delete {
			names = append(names, n.Namespace+"/"+n.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// TestPodsThatWaitForTheSameReason verifies that pods reported as waiting for the same reason share
// an explanation.
func TestPodsThatWaitForTheSameReason(t *testing.T) {
	same := 0
	for seed := range uint64(60) {
		objects := town(seed)
		objects[len(objects)-1].(*v1.Pod).Spec.SchedulingGates = nil // gated pods are explained one by one
		twin := objects[len(objects)-1].(*v1.Pod).DeepCopy()
		twin.Name, twin.UID = "waits-too", "waits-too"
		switch seed % 4 {
		case 1:
			twin.Status.NominatedNodeName = "node-0"
		case 2:
			twin.Labels["app"] = "other"
		}
		w, err := simulate.Open(manifest.Assemble("test", append(copied(objects), twin)), simulate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		first, _ := w.Find("default", "waits")
		second, _ := w.Find("default", "waits-too")
		if alike := explain.SameReason(first, second); alike != (seed%4 == 0 || seed%4 == 3) {
			t.Fatalf("town %d: the same reason: %t", seed, alike)
		} else if !alike {
			continue
		}
		same++
		one, err := explain.Of(w, explain.Options{Namespace: "default", Name: "waits"})
		if err != nil {
			t.Fatal(err)
		}
		other, err := explain.Of(w, explain.Options{Namespace: "default", Name: "waits-too"})
		if err != nil {
			t.Fatal(err)
		}
		// A change that makes room for one pod need not help the next one in the queue.
		reason := func(e *explain.Explanation) string {
			text, _, _ := strings.Cut(e.Alike(), " Smallest change: ")
			return text
		}
		if reason(one) != reason(other) {
			t.Errorf("town %d: %s\nand of its twin: %s", seed, one.Summary, other.Summary)
		}
	}
	if same < 20 {
		t.Errorf("only %d pairs", same)
	}
}

func explained(t testing.TB, objects []metav1.Object, name string) *explain.Explanation {
	t.Helper()
	w, err := simulate.Open(manifest.Assemble("test", copied(objects)), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := explain.Of(w, explain.Options{Namespace: "default", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func copied(objects []metav1.Object) []metav1.Object {
	list := make([]metav1.Object, len(objects))
	for i, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			list[i] = o.DeepCopy()
		case *v1.Pod:
			list[i] = o.DeepCopy()
		default:
			list[i] = o
		}
	}
	return list
}

// applied applies a suggestion to the objects, using only its published fields.
func applied(t testing.TB, objects []metav1.Object, s *explain.Suggestion) (after []metav1.Object, possible bool) {
	after = copied(objects)
	for i := range s.Changes {
		c := &s.Changes[i]
		kind, name, _ := strings.Cut(c.Object, "/")
		switch {
		case c.Kind == "AddNode":
			for _, o := range objects {
				if n, ok := o.(*v1.Node); ok && n.Name == name {
					if c.Patch != nil {
						n = patched(t, n, c.Patch)
					}
					after = append(after, simulate.NodeLike(n, name+"-new"))
				}
			}
		case len(c.Delete) > 0:
			after = slices.DeleteFunc(after, func(o metav1.Object) bool {
				_, isPod := o.(*v1.Pod)
				return isPod && slices.Contains(c.Delete, simulate.Name{Namespace: o.GetNamespace(), Name: o.GetName()})
			})
		case c.Patch != nil && kind == "node":
			for i, o := range after {
				if n, ok := o.(*v1.Node); ok && n.Name == name {
					after[i] = patched(t, n, c.Patch)
				}
			}
		case c.Patch != nil:
			for i, o := range after {
				if p, ok := o.(*v1.Pod); ok && "pod/"+p.Namespace+"/"+p.Name == c.Object {
					p = patched(t, p, c.Patch)
					if strings.Contains(s.Command(), "replace --force") { // admission treats it as a new pod
						p.UID, p.ResourceVersion = "", ""
					}
					after[i] = p
				}
			}
		default:
			return nil, false
		}
	}
	return after, true
}

func patched[T any](t testing.TB, object *T, patch []byte) *T {
	t.Helper()
	before, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var kind, after T
	merged, err := strategicpatch.StrategicMergePatch(before, patch, kind)
	if err != nil {
		t.Fatalf("%s: %v", patch, err)
	}
	if err := json.Unmarshal(merged, &after); err != nil {
		t.Fatal(err)
	}
	return &after
}

// town returns a small, nearly full cluster, and the pod "waits" with special requirements.
func town(seed uint64) []metav1.Object {
	r := rand.New(rand.NewPCG(seed, 8))
	chance := func(percent int) bool { return r.IntN(100) < percent }
	var objects []metav1.Object
	nodes := 2 + r.IntN(6)
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		n := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1", Labels: map[string]string{
				v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprintf("z%d", i%3), "disk": []string{"ssd", "hdd"}[r.IntN(2)],
			}},
			Status: v1.NodeStatus{Allocatable: amounts(fmt.Sprint(2+2*r.IntN(3)), "8Gi")},
		}
		n.Status.Allocatable[v1.ResourcePods] = resource.MustParse(fmt.Sprint(2 + r.IntN(6)))
		if chance(40) {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "team", Value: []string{"a", "b"}[r.IntN(2)], Effect: []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute}[r.IntN(2)]})
		}
		if chance(15) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
		}
		objects = append(objects, n)
	}
	for i := range r.IntN(4 * nodes) {
		p := pod(fmt.Sprintf("there-%d", i), amounts([]string{"500m", "1", "1500m"}[r.IntN(3)], "1Gi"))
		p.Spec.NodeName = fmt.Sprintf("node-%d", r.IntN(nodes))
		p.Labels = map[string]string{"app": []string{"web", "db"}[r.IntN(2)]}
		if chance(20) {
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
		}
		if chance(10) {
			p.Spec.Affinity = anti("web", v1.LabelHostname)
		}
		objects = append(objects, p)
	}
	objects = append(objects, houseRules(r, chance)...)
	return append(objects, choosy(r, chance))
}

// houseRules returns objects that make admission refuse or change pods of the namespace.
func houseRules(r *rand.Rand, chance func(int) bool) (objects []metav1.Object) {
	if chance(30) {
		item := v1.LimitRangeItem{Type: v1.LimitTypeContainer}
		switch r.IntN(3) {
		case 0:
			item.Min = v1.ResourceList{v1.ResourceCPU: resource.MustParse([]string{"500m", "2", "4"}[r.IntN(3)])}
		case 1:
			item.MaxLimitRequestRatio = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		case 2:
			item.Default = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}
		}
		objects = append(objects, &v1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "limits"},
			Spec: v1.LimitRangeSpec{Limits: []v1.LimitRangeItem{item}}})
	}
	if chance(20) {
		objects = append(objects, &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "quota"}, Spec: v1.ResourceQuotaSpec{
			Hard: v1.ResourceList{v1.ResourceRequestsCPU: resource.MustParse(fmt.Sprint(5 + r.IntN(30)))}}})
	}
	if chance(20) {
		objects = append(objects, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: map[string]string{
			"scheduler.alpha.kubernetes.io/tolerationsWhitelist": `[{"key":"team","operator":"Equal","value":"a"},` +
				`{"key":"node.kubernetes.io/not-ready","operator":"Exists"},{"key":"node.kubernetes.io/unreachable","operator":"Exists"}]`,
		}}})
	}
	return append(objects, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata",
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"disk": "nvme"}}})
}

func choosy(r *rand.Rand, chance func(int) bool) *v1.Pod {
	p := pod("waits", amounts([]string{"1", "2", "3", "5"}[r.IntN(4)], []string{"1Gi", "4Gi", "9Gi"}[r.IntN(3)]))
	p.Labels = map[string]string{"app": "web"}
	if chance(30) {
		p.Spec.Tolerations = []v1.Toleration{{Key: "team", Operator: v1.TolerationOpEqual, Value: "a"}}
	}
	if chance(30) {
		p.Spec.NodeSelector = map[string]string{"disk": []string{"ssd", "nvme"}[r.IntN(2)]}
	}
	if chance(10) {
		p.Spec.RuntimeClassName, p.Spec.NodeSelector = new("kata"), map[string]string{"disk": "nvme"}
	}
	if chance(10) {
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/gate"}}
	}
	if chance(10) {
		p.Spec.OS = &v1.PodOS{Name: v1.Windows}
	}
	if chance(20) {
		p.Spec.InitContainers = []v1.Container{{Name: "init", Image: "i", Resources: v1.ResourceRequirements{Requests: amounts("4", "1Gi")}}}
	}
	if chance(25) {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
	}
	if chance(30) {
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selects("web"),
		}}
	}
	switch r.IntN(5) {
	case 0:
		p.Spec.Affinity = anti("db", v1.LabelHostname)
	case 1:
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
			{LabelSelector: selects("cache"), TopologyKey: v1.LabelTopologyZone},
		}}}
	case 2:
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
				{Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{"tape"}}, {Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpExists},
			}}},
		}}}
	}
	return p
}

func pod(name string, requests v1.ResourceList) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			Containers:    []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: requests}}},
		},
	}
}

func amounts(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

func selects(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func anti(app, key string) *v1.Affinity {
	return &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{LabelSelector: selects(app), TopologyKey: key},
	}}}
}
