package rebalance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// budget is a PodDisruptionBudget as it is before the plan. Moves are made one after the other,
// each once the previous successor is ready, so what is allowed at the beginning is allowed before
// each of them.
type budget struct {
	object            *policyv1.PodDisruptionBudget
	selector          labels.Selector
	allowed           int32
	healthy, required int32
	expected          int32 // pods that it covers
}

func readBudgets(w *world) (list []*budget) {
	for _, object := range w.c.Budgets.All() {
		selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
		if err != nil {
			continue
		}
		b := &budget{object: object, selector: selector}
		s := &object.Status
		b.allowed, b.healthy, b.required, b.expected = s.DisruptionsAllowed, s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods
		if s.ObservedGeneration == 0 && s.ExpectedPods == 0 && len(s.Conditions) == 0 {
			b.fill(w)
		}
		list = append(list, b)
	}
	return list
}

// fill computes the status of a budget without one, as in a hand-written manifest.
func (b *budget) fill(w *world) {
	expected := 0
	for _, object := range w.pods {
		if object.Namespace != b.object.Namespace || !b.selector.Matches(labels.Set(object.Labels)) || object.DeletionTimestamp != nil {
			continue
		}
		expected++
		if object.Spec.NodeName != "" && ready(object) {
			b.healthy++
		}
	}
	b.expected = int32(expected)
	spec := &b.object.Spec
	switch {
	case spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, expected, true)
		if err != nil {
			n = 0
		}
		b.required = int32(max(expected-n, 0))
	case spec.MinAvailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, expected, true)
		if err != nil {
			n = expected
		}
		b.required = int32(n)
	}
	b.allowed = max(b.healthy-b.required, 0)
}

// ready reports whether a pod counts as healthy. A pod without a report of a kubelet is assumed to
// be healthy.
func ready(object *v1.Pod) bool {
	for i := range object.Status.Conditions {
		if c := &object.Status.Conditions[i]; c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return true
}

// budgetsOf returns the budgets that cover a pod. They are the same for all pods of its class.
func (w *world) budgetsOf(p *pod) (list []*budget) {
	list, known := w.covering[p.Class.ID]
	if known {
		return list
	}
	for _, b := range w.budgets {
		if b.object.Namespace == p.Namespace() && b.selector.Matches(p.Class.Labels) {
			list = append(list, b)
		}
	}
	w.covering[p.Class.ID] = list
	return list
}

// recover counts a pod that was pending as healthy, or undoes that: it has to be healthy before the
// moves that follow are made.
func (w *world) recover(p *pod, by int32) {
	for _, b := range w.budgetsOf(p) {
		b.healthy += by
		b.allowed = max(b.healthy-b.required, 0)
	}
}

// ungoverned reports whether the Eviction API deletes the pod whatever budgets say: it has not
// started yet, or has ended.
func ungoverned(object *v1.Pod) bool {
	return object.Status.Phase == v1.PodPending || rules.IsTerminal(object)
}

// forbidden returns why the Eviction API would refuse the pod, or "".
func (w *world) forbidden(p *pod) string {
	list := w.budgetsOf(p)
	switch {
	case len(list) == 0, ungoverned(p.object):
		return ""
	case len(list) > 1:
		return "more than one disruption budget covers it, which the Eviction API does not support"
	}
	b := list[0]
	if !ready(p.object) {
		always := b.object.Spec.UnhealthyPodEvictionPolicy != nil && *b.object.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
		if always || b.healthy >= b.required && b.required > 0 {
			return ""
		}
	}
	if b.allowed > 0 {
		return ""
	}
	return fmt.Sprintf("the disruption budget %s needs %d healthy pods and has %d", b.object.Name, b.required, b.healthy)
}
