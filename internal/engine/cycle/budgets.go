package cycle

import (
	"cmp"
	"maps"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// usedBudget is a disruption budget reduced by the victims of preemptions under way, as if they had
// been evicted through the Eviction API. Without it, two preemptions in a row could both use the
// same allowance. A victim counts until the API shows the budget again after a watch has shown the
// victim terminating, or until it turns out that the victim stays.
type usedBudget struct {
	shown   *policyv1.PodDisruptionBudget // as the API last showed it
	victims map[types.UID]string          // UID to name, without those that the API already counts
}

// usedBudgets are the reduced budgets, by name.
type usedBudgets map[cluster.Name]*usedBudget

// budgetSeen returns a budget that the API shows, reduced by what the API does not know yet.
func (pr *preemptions) budgetSeen(budget *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	delete(pr.budgets, nameOf(budget))
	return pr.lessened(budget, "")
}

// countVictims recomputes the budgets after a victim was chosen, or after spared turned out to
// stay.
func (pr *preemptions) countVictims(spared types.UID) {
	for _, name := range pr.concerned(spared) {
		budget, ok := pr.cluster.Budgets.Get(name.Namespace, name.Name)
		if !ok {
			continue
		}
		shown := budget
		if used := pr.budgets[name]; used != nil {
			shown = used.shown
		}
		if now := pr.lessened(shown, spared); now.Status.DisruptionsAllowed != budget.Status.DisruptionsAllowed {
			pr.cluster.Budgets.Set(now)
		}
	}
}

// concerned lists, sorted, the budgets that are reduced, and those that cover a victim under way.
func (pr *preemptions) concerned(spared types.UID) []cluster.Name {
	names := map[cluster.Name]bool{}
	for name := range pr.budgets {
		names[name] = true
	}
	cover := func(victim types.UID) {
		if p := pr.cluster.Pod(victim); p != nil && pr.keepsBudgets {
			for _, b := range pr.cluster.BudgetsOf(p.Class) {
				names[cluster.Name{Namespace: b.Namespace, Name: b.Name}] = true
			}
		}
	}
	cover(spared)
	for uid := range pr.leaving {
		cover(uid)
	}
	for b := range pr.binding {
		cover(b.Pod.UID)
	}
	return slices.SortedFunc(maps.Keys(names), func(a, b cluster.Name) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// lessened returns the budget reduced by the victims under way. If no profile promises to respect
// budgets, it is returned as it is, as kube-scheduler would see it.
func (pr *preemptions) lessened(shown *policyv1.PodDisruptionBudget, spared types.UID) *policyv1.PodDisruptionBudget {
	if !pr.keepsBudgets {
		return shown
	}
	selector, err := metav1.LabelSelectorAsSelector(shown.Spec.Selector)
	if err != nil || selector.Empty() {
		return shown
	}
	used := pr.budgets[nameOf(shown)]
	if used == nil {
		used = &usedBudget{shown: shown, victims: map[types.UID]string{}}
	}
	delete(used.victims, spared)
	for uid := range pr.leaving {
		pr.use(used, uid, selector)
	}
	for b := range pr.binding {
		pr.use(used, b.Pod.UID, selector)
	}
	if len(used.victims) == 0 {
		delete(pr.budgets, nameOf(shown))
		return shown
	}
	pr.budgets[nameOf(shown)] = used
	less := *shown
	less.Status.DisruptedPods = maps.Clone(shown.Status.DisruptedPods)
	if less.Status.DisruptedPods == nil {
		less.Status.DisruptedPods = map[string]metav1.Time{}
	}
	for _, name := range used.victims {
		less.Status.DisruptionsAllowed--
		less.Status.DisruptedPods[name] = metav1.NewTime(pr.now)
	}
	return &less
}

// use counts a victim if the budget covers it.
func (pr *preemptions) use(b *usedBudget, victim types.UID, selector labels.Selector) {
	p := pr.cluster.Pod(victim)
	if p == nil || p.Namespace() != b.shown.Namespace || !selector.Matches(p.Class.Labels) {
		return
	}
	if _, counted := b.shown.Status.DisruptedPods[p.Name]; !counted {
		b.victims[victim] = p.Name
	}
}
