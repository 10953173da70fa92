// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// World is a cluster with pending pods and a scheduler configuration, all determined by a seed.
type World struct {
	Seed uint64

	Nodes []*v1.Node
	// Placed pods are bound to a node, which in rare cases does not exist.
	Placed []*v1.Pod
	// Nominated pods wait for the end of their victims on their nominated node.
	Nominated []*v1.Pod
	// Pending pods are evaluated one by one.
	Pending []*v1.Pod
	// Sequence is set if each pending pod is placed before the next one is evaluated, and a placed
	// pod is occasionally removed.
	Sequence bool
	// Others holds all remaining API objects.
	Others []runtime.Object

	// Args holds the non-default arguments by plugin: pointers to the types of
	// k8s.io/kube-scheduler/config/v1, without defaults filled in.
	Args map[string]runtime.Object
	// Weights holds the non-default weights of plugins at Score.
	Weights map[string]int64
	// Unscored and Unfiltered are the plugins disabled only at Score and only at Filter.
	Unscored, Unfiltered []string
	// FilterOrder is the order of the plugins at Filter; nil means the default order.
	FilterOrder []string
}

func (w *World) addObject(o runtime.Object) { w.Others = append(w.Others, o) }

// listBudgets returns the budgets sorted by name, as Berth does. The order affects results:
// upstream stops counting a pod in its budgets at the first exhausted one, and upstream's informer
// lists budgets in random order.
func (w *World) listBudgets() []*policyv1.PodDisruptionBudget {
	return slices.SortedFunc(slices.Values(ofKind[*policyv1.PodDisruptionBudget](w)), func(a, b *policyv1.PodDisruptionBudget) int {
		return strings.Compare(a.Name, b.Name)
	})
}

func ofKind[T runtime.Object](w *World) (list []T) {
	for _, o := range w.Others {
		if typed, ok := o.(T); ok {
			list = append(list, typed)
		}
	}
	return list
}

// listNominated returns the nominated pods, including pending pods that have preempted.
func (w *World) listNominated() []*v1.Pod {
	list := slices.Clone(w.Nominated)
	for _, p := range w.Pending {
		placed := func(o *v1.Pod) bool { return o.UID == p.UID }
		if p.Status.NominatedNodeName != "" && !slices.ContainsFunc(w.Placed, placed) {
			list = append(list, p)
		}
	}
	return list
}

// listObjects lists all objects in an order in which they can be created.
func (w *World) listObjects() []runtime.Object {
	list := slices.Clone(w.Others)
	for _, n := range w.Nodes {
		list = append(list, n)
	}
	for _, pods := range [][]*v1.Pod{w.Placed, w.Nominated, w.Pending} {
		for _, p := range pods {
			list = append(list, p)
		}
	}
	return list
}

// withoutObject returns the world without one object.
func (w *World) withoutObject(gone runtime.Object) *World {
	smaller := *w
	is := func(o runtime.Object) bool { return o == gone }
	smaller.Others = slices.DeleteFunc(slices.Clone(w.Others), is)
	smaller.Nodes = slices.DeleteFunc(slices.Clone(w.Nodes), func(n *v1.Node) bool { return is(n) })
	for _, pods := range []*[]*v1.Pod{&smaller.Placed, &smaller.Nominated, &smaller.Pending} {
		*pods = slices.DeleteFunc(slices.Clone(*pods), func(p *v1.Pod) bool { return is(p) })
	}
	return &smaller
}
