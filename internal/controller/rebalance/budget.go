// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// budget is a PodDisruptionBudget with its status before the plan. Moves are sequential, each
// waiting for the preceding successor to become ready, so the disruptions allowed at the beginning
// are allowed before each of them.
type budget struct {
	*policyv1.PodDisruptionBudget // a copy
	selector                      labels.Selector
}

// readBudgets copies the budgets of the state, so that moves can be counted in them. A budget with
// an invalid selector covers nothing: the disruption controller cannot use it either.
func readBudgets(w *world) (list []*budget) {
	for _, object := range w.c.Budgets.All() {
		selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
		if err != nil {
			continue
		}
		b := &budget{object.DeepCopy(), selector}
		if !disruption.Counted(object) {
			b.fillStatus(w)
		}
		list = append(list, b)
	}
	return list
}

// fillStatus computes the status of a budget without one, as in a hand-written manifest.
func (b *budget) fillStatus(w *world) {
	var count disruption.Count
	for _, object := range w.pods {
		if object.Namespace == b.Namespace && b.selector.Matches(labels.Set(object.Labels)) {
			count.AddPod(object, object.Spec.NodeName != "" && disruption.IsReady(object))
		}
	}
	b.Status = count.Status(b.PodDisruptionBudget, w.Workloads())
}

// countBare counts the pods without a controller that a budget covers.
func (w *world) countBare(of *policyv1.PodDisruptionBudget) (count int) {
	i := slices.IndexFunc(w.protections.budgets, func(b *budget) bool { return b.PodDisruptionBudget == of })
	for _, p := range w.pods {
		if p.Namespace == of.Namespace && !rules.IsTerminal(p) && p.DeletionTimestamp == nil &&
			metav1.GetControllerOfNoCopy(p) == nil && w.protections.budgets[i].selector.Matches(labels.Set(p.Labels)) {
			count++
		}
	}
	return count
}

// budgetsOf returns the budgets covering a pod. They are the same for all pods of its class. The
// Eviction API refuses a pod covered by more than one; see [disruption.MayEvict].
func (pt *protections) budgetsOf(p *pod) (list []*budget) {
	list, known := pt.covering[p.Class.ID]
	if !known {
		list = slices.DeleteFunc(slices.Clone(pt.budgets), func(b *budget) bool {
			return b.Namespace != p.Namespace() || !b.selector.Matches(p.Class.Labels)
		})
		pt.covering[p.Class.ID] = list
	}
	return list
}

// countRecovered counts a formerly unready or pending pod as healthy: the following moves are made
// only after its recovery.
func (pt *protections) countRecovered(p *pod) {
	for _, b := range pt.budgetsOf(p) {
		before := b.Status // DisruptionsAllowed may be lower than the counts suggest while pods are being evicted
		pt.w.Note(func() { b.Status = before })
		b.Status.CurrentHealthy++
		disruption.Allow(b.PodDisruptionBudget)
	}
}

// mayEvict returns the Eviction API's verdict on a pod. The verdict is based on the budgets' status
// before the plan, adjusted for pods recovered since; see [budget].
func (pt *protections) mayEvict(p *pod) disruption.Verdict {
	covering := answer.Mapped(pt.budgetsOf(p), func(b *budget) *policyv1.PodDisruptionBudget { return b.PodDisruptionBudget })
	return disruption.MayEvict(p.object, disruption.IsReady(p.object), covering)
}
