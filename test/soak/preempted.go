// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// waitedPod is a pod that was pending until the given time.
type waitedPod struct {
	priority int32
	until    time.Time
}

// noteServed records that a pending pod stops waiting.
func (w *observer) noteServed(p *podSeen, now time.Time) {
	if isWaiting(p.pod) {
		w.waited = append(w.waited, waitedPod{priorityOf(p.pod), now})
	}
}

func priorityOf(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// checkPreemption verifies that the victim had a lower priority than some pod that was recently
// pending, and that no budget forbade the preemption if the preemptor respects budgets.
func (w *observer) checkPreemption(p *podSeen, message string, now time.Time) {
	if !w.sawAll(now.Add(-window), "pods") {
		w.checks.addOne(victimJust + " (not judged: changes may have been missed)")
		return
	}

	w.checks.addOne(victimJust)
	just := false
	for _, other := range w.pods {
		just = just || isWaiting(other.pod) && priorityOf(other.pod) > priorityOf(p.pod)
	}

	for _, other := range w.waited {
		just = just || other.priority > priorityOf(p.pod) && now.Sub(other.until) < window
	}
	if !just {
		w.reportOnce(victimJust, podKey(p.pod),
			"pod %s of priority %d was preempted, and no pod of a higher one waited in the last %s", podKey(p.pod),
			priorityOf(p.pod), window)
	}

	if strings.HasPrefix(message, careful+":") {
		w.checkBudgets(p, "the preemption of "+careful, now)
	}
}

// budgetSeen is a budget with the time since which it allows no disruptions.
type budgetSeen struct {
	budget   *policyv1.PodDisruptionBudget
	selector labels.Selector
	spent    time.Time // zero if the budget allows disruptions
}

func (w *observer) seesBudget(budget *policyv1.PodDisruptionBudget, now time.Time, gap *span) {
	b := w.budgets[budget.UID]
	if b == nil {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil {
			return
		}
		b = &budgetSeen{selector: selector}
		w.budgets[budget.UID] = b
	}
	b.budget = budget
	switch {
	case budget.Status.DisruptionsAllowed > 0 || budget.Status.ObservedGeneration == 0:
		b.spent = time.Time{}
	case b.spent.IsZero() || gap != nil && budget.Spec.MaxUnavailable == nil:
		b.spent = now // the budget may have allowed a disruption in the gap; the budgets with maxUnavailable allow none
	}
}

// checkBudgets verifies that each budget of a ready pod allowed disruptions at some time within the
// window.
func (w *observer) checkBudgets(p *podSeen, by string, now time.Time) {
	if !isReady(p.pod) {
		return // an unready pod may be evicted if its budget is met
	}
	for _, b := range w.budgets {
		if b.budget.Namespace != p.pod.Namespace || !b.selector.Matches(labels.Set(p.pod.Labels)) {
			continue
		}
		w.checks.addOne(budgetsKept)
		if !b.spent.IsZero() && now.Sub(b.spent) > window {
			w.reportOnce(budgetsKept, podKey(p.pod),
				"pod %s was made to leave by %s; its budget %s has allowed no disruption for %s", podKey(p.pod), by,
				b.budget.Name, now.Sub(b.spent).Round(time.Second))
		}
	}
}

func isReady(pod *v1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}
