// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// budgets maintains the status of PodDisruptionBudgets like the disruption controller. The status
// itself is in the cluster, where preemption reads it.
//
// A status from an API server is adopted and then adjusted by one for each joining or leaving pod,
// because recounting all pods after each change would be too expensive. countBudgets computes a
// missing status once.
type budgets struct {
	scheduler *scheduler
	workloads *workloads
	// list holds the budgets with valid selectors. Applying manifests rebuilds it.
	list []budget
	// unready counts placed pods that report not ready, by class. pods maintains it along with
	// pod.unready.
	unready map[*cluster.PodClass]int
}

// budget is the name of a PodDisruptionBudget and its parsed selector. The object is looked up on
// each use, because every status change creates a new object.
type budget struct {
	namespace, name string
	selector        labels.Selector
}

// countBudgets reads the cluster's budgets and computes any missing status, as in hand-written
// manifests. It traverses all pods once, by class: pods of a class share labels and controller.
func (b *budgets) countBudgets() {
	var list []budget
	b.list = nil
	c := b.scheduler.c
	for _, object := range c.Budgets.All() {
		selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
		if err != nil {
			continue // preemption ignores such a budget as well
		}
		list = append(list, budget{object.Namespace, object.Name, selector})
	}
	if len(list) == 0 {
		return
	}
	expected, healthy := b.countPods()
	for _, one := range list {
		one.fillStatus(b.scheduler, b.workloads, expected, healthy)
	}
	b.list = list
}

// countPods counts the unfinished pods by class: expected ones and, among them, healthy ones.
func (b *budgets) countPods() (expected, healthy map[*cluster.PodClass]int) {
	expected, healthy = map[*cluster.PodClass]int{}, map[*cluster.PodClass]int{}
	for _, n := range b.scheduler.c.Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			if p.Terminating { // adds the class, because its controller counts; the pod itself is neither expected nor healthy
				expected[p.Class] += 0
				continue
			}
			expected[p.Class]++
			healthy[p.Class]++
		}
	}
	// Pending pods are expected but not healthy.
	for p := range b.scheduler.eachWaiting {
		if p.refused == "" {
			expected[p.Class]++
		}
	}
	for class, n := range b.unready {
		healthy[class] -= n
	}
	return expected, healthy
}

// podGone records the removal of a pod in any state. If its controller makes budgets fail to sync,
// as a Job does, and this was the last such pod, podGone recounts the budgets.
func (b *budgets) podGone(namespace string, set labels.Labels, controller *metav1.OwnerReference) {
	if controller == nil {
		return
	}
	for _, one := range b.list {
		budget, there := b.scheduler.c.Budgets.Get(one.namespace, one.name)
		if !there || !disruption.FailedSync(&budget.Status) || !one.covers(namespace, set) || !b.mayFailSync(namespace, controller) {
			continue
		}
		if expected, healthy := b.countPods(); !b.stillFails(one, expected) {
			budget = budget.DeepCopy()
			budget.Status = policyv1.PodDisruptionBudgetStatus{}
			b.scheduler.showChanged(cycle.DisruptionBudgets, budget)
			one.fillStatus(b.scheduler, b.workloads, expected, healthy)
		}
	}
}

// mayFailSync reports whether a controller may prevent its pods' budgets from being counted,
// because the controller has no scale subresource or was not read.
func (b *budgets) mayFailSync(namespace string, controller *metav1.OwnerReference) bool {
	return controller != nil && (disruption.NoScale(controller) != "" ||
		b.workloads.table().OwnedBy(rules.OwnerBy(namespace, controller)) == nil)
}

// stillFails reports whether any remaining pod may prevent the budget from being counted.
func (b *budgets) stillFails(one budget, expected map[*cluster.PodClass]int) bool {
	return rules.Any(maps.Keys(expected), func(class *cluster.PodClass) bool {
		return one.covers(class.Namespace, class.Labels) && b.mayFailSync(class.Namespace, class.Controller.Reference())
	}) || rules.Any(world.InNamespace[*v1.Pod](b.scheduler.api, one.namespace), func(p *v1.Pod) bool {
		return rules.IsTerminal(p) && one.covers(p.Namespace, labels.Set(p.Labels)) &&
			b.mayFailSync(p.Namespace, metav1.GetControllerOfNoCopy(p))
	})
}

// covers reports whether the budget covers pods with these labels.
func (b budget) covers(namespace string, set labels.Labels) bool {
	return namespace == b.namespace && b.selector.Matches(set)
}

// fillStatus computes the status, unless the disruption controller has already written one for this
// spec.
func (b budget) fillStatus(scheduler *scheduler, workloads *workloads, expected, healthy map[*cluster.PodClass]int) {
	object, _ := scheduler.c.Budgets.Get(b.namespace, b.name)
	if disruption.Counted(object) {
		return
	}
	var count disruption.Count
	for class, n := range expected {
		if b.covers(class.Namespace, class.Labels) {
			count.Add(class.Namespace, class.Controller.Reference(), n, healthy[class])
		}
	}
	for p := range world.InNamespace[*v1.Pod](scheduler.api, b.namespace) {
		if rules.IsTerminal(p) && b.covers(p.Namespace, labels.Set(p.Labels)) {
			count.AddPod(p, false)
		}
	}
	object = object.DeepCopy()
	object.Status = count.Status(object, workloads.table())
	scheduler.showChanged(cycle.DisruptionBudgets, object)
}

// podLeft records that a healthy pod is leaving, has left or became unready: its budgets allow one
// disruption less. Callers skip pods that were already unready, because these did not count as
// healthy.
func (b *budgets) podLeft(p *cluster.Pod) {
	b.changeBudgets(p.Class, func(object *policyv1.PodDisruptionBudget) {
		object.Status.DisruptionsAllowed = max(object.Status.DisruptionsAllowed-1, 0)
		object.Status.CurrentHealthy--
	})
}

// expectPods records a change in the number of pods desired by a pod's controller, to which
// maxUnavailable and percentages refer. A change of 0 means that the controller replaced a pod. A
// refused pod does not count.
//
// A budget that covers pods of a controller without a scale, such as a DaemonSet, fails to sync and
// allows nothing; see [disruption.NoScale].
func (b *budgets) expectPods(p *pod, change int32) {
	if p.Pod == nil || p.refused != "" {
		return
	}
	controller := metav1.GetControllerOfNoCopy(p.object)
	b.changeBudgets(p.Class, func(object *policyv1.PodDisruptionBudget) {
		fault := disruption.NoScale(controller)
		switch ofScale := disruption.OfScale(&object.Spec); {
		case ofScale && fault != "" && change >= 0:
			disruption.FailSync(object, fault)
		case ofScale && (fault != "" || controller == nil), change == 0:
		default:
			disruption.Expect(object, max(object.Status.ExpectedPods+change, 0))
		}
	})
}

// podJoined records a new pod, which is assumed to be ready, or a pod that became ready: its
// budgets may allow one more disruption.
func (b *budgets) podJoined(p *cluster.Pod) {
	b.changeBudgets(p.Class, func(object *policyv1.PodDisruptionBudget) {
		object.Status.CurrentHealthy++
		disruption.Allow(object)
	})
}

// changeBudgets changes copies of the budgets for pods of the class and shows them to the core.
func (b *budgets) changeBudgets(class *cluster.PodClass, change func(object *policyv1.PodDisruptionBudget)) {
	for _, object := range b.budgetsOf(class) {
		object = object.DeepCopy()
		change(object)
		b.scheduler.showChanged(cycle.DisruptionBudgets, object)
	}
}

// budgetsOf returns the current budgets for pods of the class. Callers must not modify them.
func (b *budgets) budgetsOf(class *cluster.PodClass) (found []*policyv1.PodDisruptionBudget) {
	for _, one := range b.list {
		if object, ok := b.scheduler.c.Budgets.Get(one.namespace, one.name); ok && one.covers(class.Namespace, class.Labels) {
			found = append(found, object)
		}
	}
	return found
}

// mayEvict returns the Eviction API's verdict on a pod. It does not count the eviction; podLeft
// counts it when the pod leaves.
func (b *budgets) mayEvict(p *pod) disruption.Verdict {
	return disruption.MayEvict(p.object, !p.unready, b.budgetsOf(p.Class))
}
