package simulate

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// budgets maintains the status of PodDisruptionBudgets as the disruption controller would.
type budgets []budget

type budget struct {
	namespace, name string
	selector        labels.Selector
}

// countBudgets reads the cluster's budgets, and computes the status of those without one, as in
// hand-written manifests.
func (w *World) countBudgets() {
	var list budgets
	w.budgets = nil
	c := w.c
	for _, b := range c.Budgets.All() {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // decide.Preempt leaves it out as well
		}
		list = append(list, budget{b.Namespace, b.Name, selector})
	}
	if len(list) == 0 {
		return
	}
	expected, healthy := map[*cluster.PodClass]int{}, map[*cluster.PodClass]int{}
	for _, n := range c.Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			if p.Terminating { // it is neither healthy nor counted by its controller
				continue
			}
			expected[p.Class]++
			healthy[p.Class]++
		}
	}
	for p := range w.scheduler.waiting {
		if p.refused == "" {
			expected[p.Class]++
		}
	}
	for class, n := range w.unready {
		healthy[class] -= n
	}
	for _, b := range list {
		b.fill(w, expected, healthy)
	}
	w.budgets = list
}

func (b budget) matches(class *cluster.PodClass) bool {
	return class.Namespace == b.namespace && b.selector.Matches(class.Labels)
}

// fill computes the status, unless there is one.
func (b budget) fill(w *World, expected, healthy map[*cluster.PodClass]int) {
	object, _ := w.c.Budgets.Get(b.namespace, b.name)
	if s := &object.Status; s.ObservedGeneration != 0 || s.ExpectedPods != 0 || s.DisruptionsAllowed != 0 || len(s.Conditions) > 0 {
		return
	}
	object = object.DeepCopy()
	s := &object.Status
	for class, n := range expected {
		if b.matches(class) {
			s.ExpectedPods += int32(n)
			s.CurrentHealthy += int32(healthy[class])
		}
	}
	s.DesiredHealthy = desired(&object.Spec, int(s.ExpectedPods))
	if s.ExpectedPods > 0 {
		s.DisruptionsAllowed = max(s.CurrentHealthy-s.DesiredHealthy, 0)
	}
	w.scheduler.show(cycle.DisruptionBudgets, object)
}

// desired is how many pods have to be healthy. Percentages are of all pods, rounded up.
func desired(spec *policyv1.PodDisruptionBudgetSpec, expected int) int32 {
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

// budgetsLeft records that a pod has gone: its budgets allow one disruption less.
func (w *World) budgetsLeft(p *cluster.Pod) {
	for _, b := range w.budgets {
		if !b.matches(p.Class) {
			continue
		}
		if object, ok := w.c.Budgets.Get(b.namespace, b.name); ok {
			object = object.DeepCopy()
			object.Status.DisruptionsAllowed = max(object.Status.DisruptionsAllowed-1, 0)
			object.Status.CurrentHealthy--
			w.scheduler.show(cycle.DisruptionBudgets, object)
		}
	}
}

// expect records that the controllers of a pod's budgets want one pod more, or less: of how many
// they are is what maxUnavailable and percentages are of.
func (w *World) expect(p *pod, change int32) {
	if p.Pod == nil || p.refused != "" {
		return
	}
	for _, b := range w.budgets {
		if !b.matches(p.Class) {
			continue
		}
		if object, ok := w.c.Budgets.Get(b.namespace, b.name); ok {
			object = object.DeepCopy()
			s := &object.Status
			s.ExpectedPods = max(s.ExpectedPods+change, 0)
			s.DesiredHealthy = desired(&object.Spec, int(s.ExpectedPods))
			s.DisruptionsAllowed = max(s.CurrentHealthy-s.DesiredHealthy, 0)
			w.scheduler.show(cycle.DisruptionBudgets, object)
		}
	}
}

// budgetsJoined records a new pod, which is assumed to be ready.
func (w *World) budgetsJoined(p *cluster.Pod) {
	for _, b := range w.budgets {
		if !b.matches(p.Class) {
			continue
		}
		if object, ok := w.c.Budgets.Get(b.namespace, b.name); ok {
			object = object.DeepCopy()
			object.Status.CurrentHealthy++
			object.Status.DisruptionsAllowed = max(object.Status.CurrentHealthy-object.Status.DesiredHealthy, 0)
			w.scheduler.show(cycle.DisruptionBudgets, object)
		}
	}
}

// of returns the budgets that cover a pod.
func (list budgets) of(c *cluster.Cluster, p *cluster.Pod) (found []*policyv1.PodDisruptionBudget) {
	for _, b := range list {
		if object, ok := c.Budgets.Get(b.namespace, b.name); ok && b.matches(p.Class) {
			found = append(found, object)
		}
	}
	return found
}
