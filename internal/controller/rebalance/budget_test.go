// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	objects "github.com/berth-k8s/berth/internal/world"
)

// TestATrialGivesBudgetsTheirStatusBack verifies that undoing a trial restores the status of a
// budget. Here the budget allows fewer disruptions than its counts suggest: one of its pods has
// just been evicted, and the disruption controller has not recounted yet.
func TestATrialGivesBudgetsTheirStatusBack(t *testing.T) {
	labels := map[string]string{"app": "web"}
	web := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web", Labels: labels}}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
		Status: policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: 1, ExpectedPods: 3, CurrentHealthy: 3, DesiredHealthy: 2, DisruptionsAllowed: 0,
		},
	}
	w := beginWorld(&State{World: objects.Open([]metav1.Object{web, budget})}, Options{})
	w.protections.budgets = readBudgets(w)
	p := &pod{Pod: w.c.Pending(web), object: web}

	mark := w.Mark()
	w.protections.countRecovered(p)
	w.Undo(mark)
	if s := w.protections.budgets[0].Status; s.CurrentHealthy != 3 || s.DisruptionsAllowed != 0 {
		t.Errorf("%d healthy and %d allowed, want 3 and 0", s.CurrentHealthy, s.DisruptionsAllowed)
	}
}
