// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
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

// Count counts the pods covered by a budget, like the disruption controller. The zero value counts
// no pods.
//
//	count := Count{}; count.AddPod(...) for each pod that the budget selects; count.Status(budget, workloads)
type Count struct {
	pods, healthy int
	owners        []owned
}

// owned holds the counted pods of one controller.
type owned struct {
	rules.Owner
	controller *metav1.OwnerReference
	pods       int
}

// Add counts pods of a namespace with the same controller, or without a controller. healthy is the
// number of ready pods among them.
func (c *Count) Add(namespace string, controller *metav1.OwnerReference, pods, healthy int) {
	c.pods, c.healthy = c.pods+pods, c.healthy+healthy
	if controller == nil {
		return
	}
	owner := rules.OwnerBy(namespace, controller)
	i := slices.IndexFunc(c.owners, func(o owned) bool { return o.Owner == owner })
	if i < 0 {
		i, c.owners = len(c.owners), append(c.owners, owned{owner, controller, 0})
	}
	c.owners[i].pods += pods
}

// AddPod counts a pod. A terminal or terminating pod only adds its controller, which may already
// have replaced the pod.
func (c *Count) AddPod(p *v1.Pod, healthy bool) {
	pods, ready := 1, 0
	switch {
	case p.DeletionTimestamp != nil, rules.IsTerminal(p):
		pods = 0
	case healthy:
		ready = 1
	}
	c.Add(p.Namespace, metav1.GetControllerOfNoCopy(p), pods, ready)
}

// Status returns the status written by the disruption controller. maxUnavailable and percentages
// are relative to the scale of the pods' controllers, not to the number of existing pods. If a
// controller has no scale, the sync fails; pods without a controller do not count.
func (c *Count) Status(b *policyv1.PodDisruptionBudget, workloads *workload.Table) policyv1.PodDisruptionBudgetStatus {
	counted := &policyv1.PodDisruptionBudget{Spec: b.Spec}
	s := &counted.Status
	s.ObservedGeneration, s.CurrentHealthy, s.ExpectedPods = b.Generation, int32(c.healthy), int32(c.pods)
	if OfScale(&b.Spec) {
		expected, fault := c.scale(workloads)
		if s.ExpectedPods = int32(expected); fault != "" {
			FailSync(counted, fault)
			return *s
		}
	}
	Expect(counted, s.ExpectedPods)
	return *s
}

// scale sums up the pods wanted by the controllers. For a controller missing from the table, it
// adds the number of existing pods.
func (c *Count) scale(workloads *workload.Table) (sum int, fault string) {
	summed := map[rules.Owner]bool{}
	for _, o := range c.owners {
		if fault := NoScale(o.controller); fault != "" {
			return 0, fault
		}

		l := workloads.OwnedBy(o.Owner)
		if l == nil || l.Replicas == nil {
			sum += o.pods
			continue
		}

		// A common parent of several owners is counted once.
		if top := workloads.DeploymentOf(l); top != nil {
			l = top
		}
		if !summed[l.Owner()] {
			summed[l.Owner()] = true
			sum += int(*l.Replicas)
		}
	}
	return sum, ""
}

// OfScale reports whether a budget is relative to the scale of its pods' controllers: it uses
// maxUnavailable or a percentage. With minAvailable: 2, the scale is irrelevant.
func OfScale(spec *policyv1.PodDisruptionBudgetSpec) bool {
	return spec.MaxUnavailable != nil || spec.MinAvailable != nil && spec.MinAvailable.Type == intstr.String
}

// NoScale returns why a controller's scale cannot be read, in the words of the disruption
// controller, or "".
func NoScale(controller *metav1.OwnerReference) string {
	switch kind := rules.KindOf(controller); kind {
	case rules.DaemonSet, rules.Job:
		return fmt.Sprintf("%ss.%s does not implement the scale subresource", strings.ToLower(kind.Kind), kind.Group)
	}
	return ""
}

// Expect sets the expected pods in a budget's status, and the values derived from them. It changes
// b.
func Expect(b *policyv1.PodDisruptionBudget, pods int32) {
	b.Status.ExpectedPods, b.Status.DesiredHealthy = pods, Desired(&b.Spec, int(pods))
	Allow(b)
}

// Allow sets the allowed disruptions in a budget's status: the healthy pods in excess of the
// desired ones. It changes b.
func Allow(b *policyv1.PodDisruptionBudget) {
	s := &b.Status
	if s.DisruptionsAllowed = max(s.CurrentHealthy-s.DesiredHealthy, 0); s.ExpectedPods <= 0 || FailedSync(s) {
		s.DisruptionsAllowed = 0
	}
}

// FailSync makes a budget allow no disruption because the disruption controller cannot count the
// budget's pods. It changes b.
func FailSync(b *policyv1.PodDisruptionBudget, why string) {
	b.Status.DisruptionsAllowed = 0
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: why,
	})
}

// FailedSync reports whether the disruption controller has reported that it cannot count the
// budget's pods.
func FailedSync(s *policyv1.PodDisruptionBudgetStatus) bool {
	condition := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
	return condition != nil && condition.Status == metav1.ConditionFalse && condition.Reason == policyv1.SyncFailedReason
}

// IsReady reports whether a pod is ready, and therefore counts as healthy. A pod of a manifest,
// without any reported status, is considered ready.
func IsReady(p *v1.Pod) bool {
	return rules.HasReadyCondition(p) || !reported(p)
}

// reported reports whether a scheduler or a kubelet has written the pod's status.
func reported(p *v1.Pod) bool { return len(p.Status.Conditions) > 0 || p.Status.StartTime != nil }
