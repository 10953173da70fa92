// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

func moving(goals ...string) whatif.Step {
	return whatif.Step{Words: "rebalance", Operation: &simulate.Operation{Rebalance: &simulate.Rebalance{Goals: goals, Namespace: "default"}}}
}

// TestARebalanceIsForecast verifies that pods leave a node with an untolerated taint one move at a
// time, that a budget of one is not violated, and that every successor lands on its predicted node.
func TestARebalanceIsForecast(t *testing.T) {
	objects := town("8", 3, 1)
	objects[0].(*v1.Node).Spec.Taints = []v1.Taint{{Key: "old", Effect: v1.TaintEffectNoSchedule}}
	one := intstr.FromInt32(1)
	objects = append(objects, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	})
	f := forecast(t, objects, moving("heal"))
	if m := f.Rebalances[0]; m.Moves != 3 || m.Elsewhere != 0 || m.Stopped != "" || len(m.Stays) != 0 {
		t.Errorf("%+v, want three moves", m)
	}
	for i, l := range f.Leaving {
		if l.Node != "node-0" || l.Cause != simulate.ByRebalance || l.Detail != "heal" || l.Next == nil || l.Next.Node != "node-1" {
			t.Errorf("leaving %+v, want from node-0 to node-1", l)
		}
		if i > 0 && l.After <= f.Leaving[i-1].After {
			t.Errorf("%s leaves before the successor of the one before has a node", l.Name)
		}
	}
	if len(f.Leaving) != 3 || len(f.Budgets) != 0 || len(f.Pending) != 0 {
		t.Errorf("leaving %d, budgets %+v, pending %+v", len(f.Leaving), f.Budgets, f.Pending)
	}
}

// TestAForecastOfConsolidation verifies that an emptied node keeps its taint, and that a node that
// cannot be emptied is restored, with the reason in the forecast.
func TestAForecastOfConsolidation(t *testing.T) {
	f := forecast(t, town("8", 1, 4, 4), moving("consolidate=1"))
	if m := f.Rebalances[0]; m.Moves != 1 || !slices.Equal(m.Empties, []string{"node-0"}) || m.Stopped != "" {
		t.Errorf("%+v, want node-0 emptied", m)
	}
	if f.Utilisation.After.Empty != 1 {
		t.Errorf("%d nodes are empty", f.Utilisation.After.Empty)
	}
	full := forecast(t, town("4", 4, 4), moving("consolidate=1"))
	m := full.Rebalances[0]
	if m.Moves != 0 || len(m.Empties) != 0 || len(m.Stays) == 0 || m.Stays[0].Code != rebalance.NoBetterNode {
		t.Errorf("%+v, want that no node can be emptied", m)
	}
}

// TestAForecastDoesNotListANodeThatIsRemovedAsEmptied verifies that a node removed while it is
// being emptied is not listed as a remaining empty node.
func TestAForecastDoesNotListANodeThatIsRemovedAsEmptied(t *testing.T) {
	lost := whatif.Step{Operation: &simulate.Operation{RemoveNode: &simulate.Nodes{Node: "node-0"}}}
	f := forecast(t, town("8", 1, 4, 4), moving("consolidate=1"), lost)
	if m := f.Rebalances[0]; slices.Contains(m.Empties, "node-0") {
		t.Errorf("%+v, but node-0 is no more", m)
	}
}

// TestAForecastFollowsWhatElseHappens verifies that a new plan is made if other pods take the room
// in the meantime.
func TestAForecastFollowsWhatElseHappens(t *testing.T) {
	objects := town("8", 3, 1, 1)
	objects[0].(*v1.Node).Spec.Taints = []v1.Taint{{Key: "old", Effect: v1.TaintEffectNoSchedule}}
	lost := whatif.Step{Operation: &simulate.Operation{RemoveNode: &simulate.Nodes{Node: "node-2"}}}
	f := forecast(t, objects, moving("heal"), lost)
	m := f.Rebalances[0]
	if m.Stopped != "" || len(f.Pending) != 0 || f.Utilisation.After.Pods != 5 {
		t.Errorf("%+v, pending %+v, %d pods placed", m, f.Pending, f.Utilisation.After.Pods)
	}
	for _, l := range f.Leaving {
		if l.Cause == simulate.ByRebalance && l.Next.Node == "node-0" {
			t.Errorf("%s comes back to node-0", l.Name)
		}
	}
}
