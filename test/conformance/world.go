package conformance

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// World is one cluster, what waits in it, and how it is scheduled: all that a seed stands for.
type World struct {
	Seed uint64

	Nodes []*v1.Node
	// Placed pods have a node, rarely one that is not known.
	Placed []*v1.Pod
	// Nominated pods wait for room on a node that they preempted others for.
	Nominated []*v1.Pod
	// Pending pods are judged one by one.
	Pending []*v1.Pod
	// Sequence: each is placed before the next is judged, and now and then another pod goes.
	Sequence bool
	// Others are all other API objects.
	Others []runtime.Object

	// Args are the arguments of plugins that do not run with the defaults, by plugin: pointers to
	// the types of k8s.io/kube-scheduler/config/v1, without defaults filled in.
	Args map[string]runtime.Object
	// Weights are those of plugins at Score that have another than the default.
	Weights map[string]int64
	// Unscored and Unfiltered are the plugins disabled at Score and at Filter alone.
	Unscored, Unfiltered []string
	// FilterOrder is the order of the plugins at Filter; nil for the default one.
	FilterOrder []string
}

func (w *World) addObject(o runtime.Object) { w.Others = append(w.Others, o) }

// listBudgets sorts the budgets by name, as Berth does. Upstream's informer lists them by chance,
// and the first exhausted one of a pod's budgets ends the count.
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

// listNominated are the pods that wait for room on a node: those of the pending ones that did
// preempt, too.
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

// withoutObject returns the world less one object.
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
