// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/world/disruption"
)

// TestABudgetThatWasNeverCounted verifies that Counted is true for a budget whose first sync
// failed, and that MayEvict then returns Later with the reason of the failure, like the API server.
func TestABudgetThatWasNeverCounted(t *testing.T) {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 1}}
	if disruption.Counted(b) {
		t.Error("without a status it counts as counted")
	}
	b.Status.Conditions = []metav1.Condition{{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: `no matches for kind "CloneSet"`,
	}}
	verdict := disruption.MayEvict(&v1.Pod{Status: v1.PodStatus{Phase: v1.PodRunning}}, true, []*policyv1.PodDisruptionBudget{b})
	const says = `the disruption budget b is still being processed by the server, because it failed sync: no matches for kind "CloneSet"`
	if !disruption.Counted(b) || verdict.Answer != disruption.Later || verdict.Message != says {
		t.Errorf("counted: %t, %+v", disruption.Counted(b), verdict)
	}
}

// TestHopelessBudgets verifies that a budget is hopeless if none of its three replicas may be
// unavailable, unless the budget refers to scales and covers another healthy pod without a
// controller.
func TestHopelessBudgets(t *testing.T) {
	none, three := intstr.FromInt32(0), intstr.FromInt32(3)
	status := policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, DesiredHealthy: 3, CurrentHealthy: 2}
	for i, c := range []struct {
		spec policyv1.PodDisruptionBudgetSpec
		bare int
		want bool
	}{
		{policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &none}, 0, true},
		{policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &none}, 1, false},
		{policyv1.PodDisruptionBudgetSpec{MinAvailable: &three}, 1, true}, // the pod without a controller is one of the three
	} {
		if got := disruption.Hopeless(&policyv1.PodDisruptionBudget{Spec: c.spec, Status: status}, c.bare); got != c.want {
			t.Errorf("case %d: %t, want %t", i+1, got, c.want)
		}
	}
}
