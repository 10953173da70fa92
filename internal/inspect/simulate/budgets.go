package simulate

import (
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

// budgets maintains the status of PodDisruptionBudgets as the disruption controller would.
// The status itself is in the cluster, where preemption reads it.
//
// A status from an API server is taken as it is, and changed by one for each pod that joins
// or leaves; counting all pods anew after each change would cost too much. One that manifests
// do not have is counted once, by countBudgets.
type budgets struct {
	scheduler *scheduler
	workloads *workloads
	// list are the budgets whose selector is valid. It is read anew when manifests are
	// applied.
	list []budget
	// unready counts the placed pods that report not being ready, by class. pods maintains
	// it, together with pod.unready.
	unready map[*cluster.PodClass]int
}

// budget is a PodDisruptionBudget by name, with its parsed selector. The object is looked up
// whenever it is needed, because each change of its status makes another one.
type budget struct {
	namespace, name string
	selector        labels.Selector
}

// countBudgets reads the cluster's budgets, and computes the status of those without one, as
// in hand-written manifests. It goes through all pods once, by class: pods of a class have
// the same labels and controller.
func (b *budgets) countBudgets() {
	var list []budget
	b.list = nil
	c := b.scheduler.c
	for _, object := range c.Budgets.All() {
		selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
		if err != nil {
			continue // decide.Plain leaves it out as well
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

// countPods counts the pods that have not ended by class: how many are expected, and how many
// of them are healthy.
func (b *budgets) countPods() (expected, healthy map[*cluster.PodClass]int) {
	expected, healthy = map[*cluster.PodClass]int{}, map[*cluster.PodClass]int{}
	for _, n := range b.scheduler.c.Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			if p.Terminating { // it is neither healthy nor counted by its controller, which counts
				expected[p.Class] += 0
				continue
			}
			expected[p.Class]++
			healthy[p.Class]++
		}
	}
	// Pending pods are expected, and not healthy.
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

// podGone records that a pod is no longer there, whatever it was. If its controller is one that
// fails the sync of budgets, as a Job does, and no other pod has such a one, the budgets are
// counted again.
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

// mayFailSync reports whether a controller may be why budgets of its pods cannot be counted: it has
// no scale, or is of a kind that was not read.
func (b *budgets) mayFailSync(namespace string, controller *metav1.OwnerReference) bool {
	return controller != nil && (disruption.NoScale(controller) != "" ||
		b.workloads.table().By(rules.OwnerBy(namespace, controller)) == nil)
}

// stillFails reports whether a pod is left that may be why the budget cannot be counted.
func (b *budgets) stillFails(one budget, expected map[*cluster.PodClass]int) bool {
	for class := range expected {
		if one.covers(class.Namespace, class.Labels) && b.mayFailSync(class.Namespace, class.Controller) {
			return true
		}
	}
	for p := range world.In[*v1.Pod](b.scheduler.api, one.namespace) {
		if rules.IsTerminal(p) && one.covers(p.Namespace, labels.Set(p.Labels)) &&
			b.mayFailSync(p.Namespace, metav1.GetControllerOfNoCopy(p)) {
			return true
		}
	}
	return false
}

// covers reports whether the budget covers pods with these labels.
func (b budget) covers(namespace string, set labels.Labels) bool {
	return namespace == b.namespace && b.selector.Matches(set)
}

// fillStatus computes the status, unless the disruption controller has written one for this
// spec.
func (b budget) fillStatus(scheduler *scheduler, workloads *workloads, expected, healthy map[*cluster.PodClass]int) {
	object, _ := scheduler.c.Budgets.Get(b.namespace, b.name)
	if disruption.Counted(object) {
		return
	}
	var count disruption.Count
	for class, n := range expected {
		if b.covers(class.Namespace, class.Labels) {
			count.Add(class.Namespace, class.Controller, n, healthy[class])
		}
	}
	for p := range world.In[*v1.Pod](scheduler.api, b.namespace) {
		if rules.IsTerminal(p) && b.covers(p.Namespace, labels.Set(p.Labels)) {
			count.AddPod(p, false)
		}
	}
	object = object.DeepCopy()
	object.Status = count.Status(object, workloads.table())
	scheduler.showChanged(cycle.DisruptionBudgets, object)
}

// podLeft records that a pod has gone, or is going: its budgets allow one disruption less. A
// pod that was not ready does not count as healthy, and must not be subtracted here.
func (b *budgets) podLeft(p *cluster.Pod) {
	b.changeBudgets(p.Class, func(object *policyv1.PodDisruptionBudget) {
		object.Status.DisruptionsAllowed = max(object.Status.DisruptionsAllowed-1, 0)
		object.Status.CurrentHealthy--
	})
}

// expectPods records that a pod's controller wants one pod more, or less, or with 0 that it has
// made one in place of another. That is the number that maxUnavailable and percentages are of.
// Nothing is expected of a pod that was refused.
// A controller without a scale, such as a DaemonSet, makes a budget of that kind fail its
// sync, which allows nothing; see [disruption.NoScale].
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

// podJoined records a new pod, which is assumed to be ready: its budgets may allow a
// disruption more.
func (b *budgets) podJoined(p *cluster.Pod) {
	b.changeBudgets(p.Class, func(object *policyv1.PodDisruptionBudget) {
		object.Status.CurrentHealthy++
		disruption.Allow(object)
	})
}

// changeBudgets changes the budgets that cover pods of the class, each in a copy that the
// core is then shown.
func (b *budgets) changeBudgets(class *cluster.PodClass, change func(object *policyv1.PodDisruptionBudget)) {
	for _, object := range b.budgetsOf(class) {
		object = object.DeepCopy()
		change(object)
		b.scheduler.showChanged(cycle.DisruptionBudgets, object)
	}
}

// budgetsOf returns the budgets that cover pods of the class, as they are now. They must not
// be changed.
func (b *budgets) budgetsOf(class *cluster.PodClass) (found []*policyv1.PodDisruptionBudget) {
	for _, one := range b.list {
		if object, ok := b.scheduler.c.Budgets.Get(one.namespace, one.name); ok && one.covers(class.Namespace, class.Labels) {
			found = append(found, object)
		}
	}
	return found
}

// mayEvict is the Eviction API's answer for a pod. It does not count the eviction: podLeft
// does, when the pod goes.
func (b *budgets) mayEvict(p *pod) disruption.Verdict {
	return disruption.MayEvict(p.object, !p.unready, b.budgetsOf(p.Class))
}
