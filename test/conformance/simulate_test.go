// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestSimulateSaysTheSame verifies that `berth simulate`, given the objects of a world as
// manifests, returns the same verdict for a pod on every node as upstream.
func TestSimulateSaysTheSame(t *testing.T) {
	worlds, pods, nodes, refused := 0, 0, 0, map[string]int{}
	for seed := *first; worlds < max(1, *clusters/100) && seed < *first+uint64(*clusters); seed++ {
		w := Generate(seed)
		w.Nominated, w.Sequence, w.Args, w.Weights, w.Unscored, w.Unfiltered, w.FilterOrder = nil, false, nil, nil, nil, nil, nil
		worlds++
		for _, pod := range w.Pending {
			if len(pod.Spec.SchedulingGates) > 0 {
				continue
			}
			one := *w
			one.Pending = []*v1.Pod{pod}
			compared, err := simulated(t, &one)
			var faults manifest.Errors
			switch {
			case errors.As(err, &faults):
				refused[reason(faults[0])]++
			case err != nil:
				t.Fatalf("seed %d: %v", seed, err)
			default:
				pods++
				nodes += compared
			}
			if t.Failed() {
				t.Fatalf("seed %d, pod %s", seed, pod.Name)
			}
		}
	}
	t.Logf("%d worlds, %d pods on %d nodes with %d victims; refused as the API server would: %v", worlds, pods, nodes, compared.Load(), refused)
	if nodes == 0 || *clusters >= 2000 && compared.Load() == 0 {
		t.Error("nothing was compared")
	}
}

// simulated compares the results for the only pending pod of a world, and returns the number of
// compared nodes.
func simulated(t *testing.T, w *World) (int, error) {
	waiting := w.Pending[0]
	w.Others = asWritten(idle(w.Others))
	set, err := manifest.Read([]string{"-"}, strings.NewReader(w.YAML()), manifest.Options{Lenient: true})
	if err != nil {
		return 0, err
	}
	result, err := simulate.Run(set, simulate.Options{Explain: true, Seed: 1})
	if err != nil {
		return 0, err
	}
	seen := w.seen(set)
	u, err := newUpstream(context.Background(), seen, presentPlugins())
	if err != nil {
		return 0, fmt.Errorf("upstream: %w", err)
	}
	defer u.stop()
	want := u.attemptPod(context.Background(), seen.Pending[0])
	i := slices.IndexFunc(result.Pods, func(p simulate.Pod) bool { return p.Name == waiting.Name && p.Namespace == waiting.Namespace })
	if i < 0 {
		t.Errorf("pod %s is not in the answer", waiting.Name)
		return 0, nil
	}
	got := result.Pods[i]
	if want.failed != nil || want.all.inFlight() {
		return 0, nil
	}
	totals := map[string]int64{}
	for _, s := range want.scores {
		totals[s.Name] = s.TotalScore
	}
	for _, n := range got.Nodes {
		verdict := want.nodes[n.Name]
		if want.all != nil {
			verdict = want.all
		}
		switch {
		case n.Feasible != (verdict == nil), verdict != nil && !slices.Equal(slices.Sorted(slices.Values(verdict.Reasons)), slices.Sorted(slices.Values(n.Reasons))):
			anew, err := judgeAnew(context.Background(), seen, presentPlugins(), seen.Pending[0], n.Name)
			if err == nil && (anew == nil) == n.Feasible {
				return 0, nil // difference on purpose: see docs/reference/differences.md
			}
			t.Errorf("%s: feasible %t, %s %q; upstream: %s\n%s", n.Name, n.Feasible, n.Plugin, n.Reasons, verdict, seen.YAML())
		case verdict != nil && verdict.Plugin != n.Plugin:
			t.Errorf("%s: rejected by %s, upstream: %s\n%s", n.Name, n.Plugin, verdict, seen.YAML())
		case verdict == nil && n.Total != nil && *n.Total != totals[n.Name]:
			t.Errorf("%s: total %d of %v; upstream %d\n%s", n.Name, *n.Total, n.Scores, totals[n.Name], seen.YAML())
		}
	}
	best, _ := want.bestNodes(seen.Pending[0])
	if len(best) > 0 && !slices.Contains(best, got.Node) {
		t.Errorf("placed on %q, upstream says %v: %s", got.Node, best, got.Message)
	}
	if len(best) == 0 {
		simulatedVictims(t, u, seen, want, got)
	}
	return len(got.Nodes), nil
}

// simulatedVictims compares the victims of a pod that fits on no node.
func simulatedVictims(t *testing.T, u *upstream, seen *World, want *attempt, got simulate.Pod) {
	t.Helper()
	ctx, pod := context.Background(), seen.Pending[0]
	candidates, err := u.preemptFor(ctx, seen, want, pod)
	if err != nil || slices.ContainsFunc(candidates, func(v victims) bool { return v.ambiguous }) {
		return
	}
	said := victims{node: cmp.Or(got.NominatedNode, got.Node)}
	for _, v := range got.Victims {
		said.pods = append(said.pods, v.Name)
	}
	same := func(list []victims) bool {
		if len(list) == 0 {
			return len(said.pods) == 0
		}
		return slices.ContainsFunc(cheapestOf(list), func(v victims) bool { return v.node == said.node && sameNames(v.pods, said.pods) })
	}
	if same(candidates) {
		compared.Add(int64(len(said.pods)))
		return
	}
	if anew, err := u.preemptAnew(ctx, seen, presentPlugins(), want, pod); err == nil && same(anew) {
		return // difference on purpose: see docs/reference/differences.md
	}
	t.Errorf("preempts %v on %q, upstream says one of %v\n%s", said.pods, said.node, cheapestOf(candidates), seen.YAML())
}

// compared counts the victims compared by simulatedVictims.
var compared atomic.Int64

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// idle sets the replicas of controllers to 0, so that the simulation creates no pods for them. The
// controllers only serve to group pods.
func idle(objects []runtime.Object) []runtime.Object {
	objects = slices.Clone(objects)
	for i, o := range objects {
		o = o.DeepCopyObject()
		switch o := o.(type) {
		case *appsv1.ReplicaSet:
			o.Spec.Replicas = new(int32)
		case *appsv1.StatefulSet:
			o.Spec.Replicas = new(int32)
		case *v1.ReplicationController:
			o.Spec.Replicas = new(int32)
		}
		objects[i] = o
	}
	return objects
}

// asWritten marks the status of budgets as written by a controller. Otherwise the simulation would
// compute the allowed disruptions.
func asWritten(objects []runtime.Object) []runtime.Object {
	for i, o := range objects {
		if budget, ok := o.(*policyv1.PodDisruptionBudget); ok {
			budget = budget.DeepCopy()
			budget.Status.ObservedGeneration = 1
			objects[i] = budget
		}
	}
	return objects
}

// seen returns the world with the nodes and pods of a set of manifests, and with the pending pod
// after admission.
func (w *World) seen(set *manifest.Set) *World {
	seen := *w
	seen.Nodes, seen.Placed, seen.Pending = set.Nodes, nil, nil
	for _, p := range set.Pods {
		if p.Namespace == w.Pending[0].Namespace && p.Name == w.Pending[0].Name {
			// Additions by admission to a pod, such as a toleration of memory pressure, are not
			// tested here.
			catalog := admission.NewCatalog(set.Namespaces, set.PriorityClasses, set.RuntimeClasses)
			if admitted, err := admission.Create(admission.Config{}, catalog, p); err == nil {
				p = admitted
			}
			seen.Pending = append(seen.Pending, p)
		} else {
			seen.Placed = append(seen.Placed, p)
		}
	}
	return &seen
}

// reason returns the text of a fault without its position in the manifests.
func reason(fault *manifest.Error) string {
	text := fault.Error()
	if _, after, ok := strings.Cut(text, ": "); ok {
		text = after
	}
	return text
}
