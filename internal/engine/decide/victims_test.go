// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// budgetWorld is a cluster of full nodes with pods covered by budgets, and pending pods that need
// room.
type budgetWorld struct {
	*rand.Rand
	c      *cluster.Cluster
	d      *Decider
	serial int
}

func newBudgetWorld(seed uint64) *budgetWorld {
	w := &budgetWorld{Rand: rand.New(rand.NewPCG(seed, 7)), c: cluster.New()}
	for i := range 12 {
		w.c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Labels: map[string]string{
				v1.LabelHostname: fmt.Sprint("node-", i), v1.LabelTopologyZone: fmt.Sprint("z", i%3),
			}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110"),
			}},
		})
		for range 4 {
			w.fill(fmt.Sprint("node-", i))
		}
	}
	w.d = New(w.c, plugins.Default(), seed)
	return w
}

// fill adds a pod to a node. Names are reused, including in other namespaces.
func (w *budgetWorld) fill(node string) {
	w.serial++
	pod := benchPod(0, "plain")
	pod.Name, pod.UID, pod.Spec.NodeName = fmt.Sprint("pod-", w.serial%100), types.UID(fmt.Sprint(w.serial)), node
	pod.Namespace = []string{"default", "default", "other"}[w.IntN(3)]
	pod.Labels = map[string]string{"app": fmt.Sprint("app-", w.IntN(3)), "tier": fmt.Sprint(w.IntN(2))}
	pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse([]string{"1", "500m"}[w.IntN(2)])}
	pod.Status.StartTime = &metav1.Time{Time: metav1.Unix(int64(w.serial), 0).Time}
	w.c.SetPod(pod)
}

// change makes one random change of the kinds that happen between two preemptions.
func (w *budgetWorld) change() {
	namespace, name := []string{"default", "other"}[w.IntN(2)], fmt.Sprint("budget-", w.IntN(4))
	before, there := w.c.Budgets.Get(namespace, name)
	switch kind := w.IntN(10); {
	case kind == 0: // a pod of another kind replaces an existing pod
		pods := w.c.Node(fmt.Sprint("node-", w.IntN(12))).Pods
		gone := pods[w.IntN(len(pods))]
		w.c.RemovePod(gone.UID())
		w.fill(gone.NodeName)
	case kind == 1 && there:
		w.c.Budgets.Delete(namespace, name)
	case kind <= 3 || !there:
		selectors := []*metav1.LabelSelector{
			nil, {}, {MatchLabels: map[string]string{"app": fmt.Sprint("app-", w.IntN(3))}}, {MatchLabels: map[string]string{"tier": fmt.Sprint(w.IntN(2))}},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprint("app-", w.IntN(3))}}}},
		}
		w.c.Budgets.Set(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selectors[w.IntN(len(selectors))]},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(w.IntN(4))},
		})
	case kind <= 7:
		budget := before.DeepCopy()
		budget.Status.DisruptionsAllowed = int32(w.IntN(5)) - 1
		w.c.Budgets.Set(budget)
	default:
		budget := before.DeepCopy()
		budget.Status.DisruptedPods = map[string]metav1.Time{}
		for range w.IntN(6) {
			budget.Status.DisruptedPods[fmt.Sprint("pod-", w.IntN(100))] = metav1.Time{}
		}
		w.c.Budgets.Set(budget)
	}
}

// count adds or removes a non-preemptible pod that counts in the tallies of the pending pods.
func (w *budgetWorld) count() {
	if uid := types.UID(fmt.Sprint("counted-", w.IntN(10))); w.c.Pod(uid) != nil {
		w.c.RemovePod(uid)
	} else {
		pod := benchPod(0, "plain")
		pod.Name, pod.UID, pod.Spec.NodeName, pod.Spec.Priority = string(uid), uid, fmt.Sprint("node-", w.IntN(12)), new(int32(1000))
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1m")}
		w.c.SetPod(pod)
	}
}

// TestVictimsAreFollowed verifies that the cached victims on each node are updated after changes of
// the budgets and of the tallies of the class.
func TestVictimsAreFollowed(t *testing.T) {
	for _, mode := range []string{"plain", "spread", "affinity", "anti", "anti by zone"} {
		kept := 0
		for seed := range uint64(20) {
			w := newBudgetWorld(seed)
			for step := range 60 {
				for range w.IntN(3) {
					if w.change(); w.IntN(2) == 0 {
						w.count()
					}
				}
				own, byZone := strings.CutSuffix(mode, " by zone")
				pod := benchPod(0, own)
				if byZone {
					pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = v1.LabelTopologyZone
				}
				pod.UID, pod.Spec.Priority = types.UID(fmt.Sprint("high-", step)), new(int32(100))
				pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("3800m")}
				p := w.c.Pending(pod)
				if decision := w.d.Decide(p); decision.Node != nil {
					t.Fatalf("%s, seed %d, step %d: there is room", mode, seed, step)
				}
				looked := w.d.meter.Work
				w.d.Preempt(p)
				if w.d.meter.Work == looked {
					kept++
				}
				r, _ := w.d.cache.rankingFor(p)
				fresh, budgets := &hypothesis{r: r, p: p}, newBudgets(w.c, w.d.profile, p)
				remembered := w.d.cache.candidatesFor(r)
				for node := range remembered.byNode {
					kept, now := remembered.byNode[node], fresh.costOfNode(int32(node), budgets)
					if kept.candidate != now.candidate || kept.compare(&now) != 0 || (kept.why == nil) != (now.why == nil) || kept.why != nil && kept.why.plugin != now.why.plugin {
						t.Fatalf("%s, seed %d, step %d: node %d is remembered with %+v, and costs %+v", mode, seed, step, node, kept, now)
					}
				}
			}
		}
		if kept < 100 {
			t.Errorf("%s: %d preemptions of 1,200 needed no new look at a node", mode, kept)
		}
	}
}

// TestViolatedBudgetIsTheLast verifies that a pod that violates one budget does not use up later
// budgets, as in kube-scheduler since v1.37.
func TestViolatedBudgetIsTheLast(t *testing.T) {
	c := cluster.New()
	for name, of := range map[string]struct {
		covers  string
		allowed int32
	}{"a": {"one", 0}, "b": {"both", 1}} {
		c.Budgets.Set(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{of.covers: ""}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: of.allowed},
		})
	}
	pending := func(name string, labels map[string]string) *cluster.Pod {
		return c.Pending(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: labels}})
	}
	first := pending("first", map[string]string{"one": "", "both": ""})
	second := pending("second", map[string]string{"both": ""})

	violating, others := newBudgets(c, plugins.Default(), first).splitByBudget([]*cluster.Pod{first, second})

	if len(violating) != 1 || violating[0] != first || len(others) != 1 || others[0] != second {
		t.Errorf("violating %v, others %v", violating, others)
	}
}
