// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Answer is the Eviction API's response.
type Answer int

// The responses. Later is a 429, after which clients retry; Never is a permanent error.
const (
	Allowed Answer = iota
	Later
	Never
)

// Verdict is a response with its reason. The zero value allows the eviction.
type Verdict struct {
	Answer Answer
	// Budget is the budget that decided, or nil.
	Budget *policyv1.PodDisruptionBudget
	// Spends is set if the eviction uses up one of the disruptions allowed by the budget.
	Spends bool
	// Message is the reason for not evicting the pod.
	Message string
}

// mostDisrupted is the API server's limit on the number of a budget's evictions not yet observed by
// the disruption controller. Beyond the limit, the controller is considered down.
const mostDisrupted = 2000

// MayEvict returns the Eviction API's verdict on a pod covered by these budgets. ready reports
// whether the pod counts as healthy. MayEvict changes nothing; if Spends is set, the API server
// would subtract one from DisruptionsAllowed.
func MayEvict(p *v1.Pod, ready bool, covering []*policyv1.PodDisruptionBudget) Verdict {
	switch {
	case len(covering) == 0, Ungoverned(p):
		return Verdict{}
	case len(covering) > 1:
		return Verdict{
			Answer: Never, Budget: covering[0],
			Message: "more than one disruption budget covers it, which the Eviction API does not support",
		}
	}

	b := covering[0]
	s, answer := &b.Status, Verdict{Budget: b}
	// An unready pod may be evicted without spending a disruption: always if the budget's policy is
	// AlwaysAllow, and otherwise as long as enough other pods are healthy. Without this exception,
	// a pod that never becomes ready could block every drain.
	if !ready {
		always := b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
		if always || s.CurrentHealthy >= s.DesiredHealthy && s.DesiredHealthy > 0 {
			return answer
		}
	}

	switch {
	// The budget was changed, and its numbers are outdated.
	case s.ObservedGeneration < b.Generation:
		answer.Answer, answer.Message = Later, fmt.Sprintf("the disruption budget %s is still being processed by the server", b.Name)
		if FailedSync(s) { // a failed sync does not update the numbers
			condition := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
			answer.Message += ", because it failed sync: " + condition.Message
		}
	case s.DisruptionsAllowed < 0:
		answer.Answer, answer.Message = Never, fmt.Sprintf("the disruption budget %s allows a negative number of disruptions", b.Name)
	case len(s.DisruptedPods) > mostDisrupted:
		answer.Answer, answer.Message = Never,
			fmt.Sprintf("the disruption budget %s has too many evictions that its controller has not confirmed", b.Name)
	case s.DisruptionsAllowed == 0:
		answer.Answer, answer.Message = Later, why(b)
	default:
		answer.Spends = true
	}

	return answer
}

// why explains why a budget allows no disruption, by the message of the disruption controller or by
// the budget's numbers.
func why(b *policyv1.PodDisruptionBudget) string {
	s := &b.Status
	condition := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
	says := condition != nil && condition.Status == metav1.ConditionFalse && condition.Message != ""
	switch {
	case says && FailedSync(s): // the numbers predate the failure
		return fmt.Sprintf("the disruption budget %s does not allow evicting pods currently "+
			"because it failed sync: %s", b.Name, condition.Message)
	case s.CurrentHealthy <= s.DesiredHealthy:
		return fmt.Sprintf("the disruption budget %s needs %d healthy pods and has %d", b.Name, s.DesiredHealthy, s.CurrentHealthy)
	case says:
		return fmt.Sprintf("the disruption budget %s does not allow evicting pods currently (%s): %s", b.Name,
			condition.Reason, condition.Message)
	}
	return fmt.Sprintf("the disruption budget %s does not allow evicting pods currently", b.Name)
}

// Ungoverned reports whether the Eviction API deletes a pod regardless of budgets: its containers
// have not started yet, it has ended, or it is being deleted. A pod of a manifest, without any
// reported status, is considered running: the phase Pending is only the default there.
func Ungoverned(p *v1.Pod) bool {
	starting := p.Status.Phase == v1.PodPending && reported(p)
	return starting || rules.IsTerminal(p) || p.DeletionTimestamp != nil
}

// Hopeless reports whether a budget allows no disruption even with all of its pods healthy, as with
// minAvailable: 100%. A drain that waits for such a budget never ends. bare is the number of its
// pods without a controller: a budget relative to scales counts them as healthy, but not as
// expected.
func Hopeless(b *policyv1.PodDisruptionBudget, bare int) bool {
	s, most := &b.Status, int(b.Status.ExpectedPods)
	if OfScale(&b.Spec) {
		most += bare
	}
	return s.ExpectedPods > 0 && int(s.DesiredHealthy) >= most && s.DisruptionsAllowed == 0
}

// Counted reports whether the disruption controller has written the budget's status for its current
// spec, or has reported that it cannot count the pods. Budgets of manifests may lack a status. An
// all-zero status with generation 0 counts as missing.
func Counted(b *policyv1.PodDisruptionBudget) bool {
	s := &b.Status
	return FailedSync(s) || s.ObservedGeneration >= b.Generation && (s.ObservedGeneration != 0 || s.ExpectedPods != 0 ||
		s.DisruptionsAllowed != 0 || len(s.Conditions) > 0)
}

// Desired returns the number of healthy pods required by a budget, given the expected pods.
// Percentages are rounded up. A malformed value requires all pods. For example, with 5 expected
// pods:
//
//	minAvailable: 50%      3
//	maxUnavailable: 50%    2, because 3 may be unavailable
//	maxUnavailable: 1      4
func Desired(spec *policyv1.PodDisruptionBudgetSpec, expected int) int32 {
	switch {
	case spec.MaxUnavailable != nil:
		unavailable, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, expected, true)
		if err != nil {
			return int32(expected)
		}
		return int32(max(expected-unavailable, 0))
	case spec.MinAvailable != nil:
		available, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, expected, true)
		if err != nil {
			return int32(expected)
		}
		return int32(available)
	}
	return 0
}
