package disruption_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/world/disruption"
)

// The disruption controller cannot count a budget's pods, and never could: it is not counted in its
// place, which the API server does not do either.
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
