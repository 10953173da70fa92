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

// World is one cluster with its pending pods and its scheduler configuration: everything determined
// by a seed.
type World struct {
	Seed uint64

	Nodes []*v1.Node
	// Placed pods have a node, rarely an unknown one.
	Placed []*v1.Pod
	// Nominated pods await room on the node of their victims.
	Nominated []*v1.Pod
	// Pending pods are evaluated one by one.
	Pending []*v1.Pod
	// Sequence: each is placed before the next is evaluated, and occasionally another pod is
	// removed.
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
	// FilterOrder is the order of the plugins at Filter; nil for the default one.
	FilterOrder []string
}

func (w *World) addObject(o runtime.Object) { w.Others = append(w.Others, o) }

// listBudgets sorts the budgets by name, like Berth. Upstream's informer lists them in random
// order, and the first exhausted one of a pod's budgets ends the count.
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

// listObjects lists everything but the arguments, in an order that can be applied.
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
