// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"maps"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
)

// Used is the form of a usedBudget in a [Resumed]: a disruption budget with the victims that its
// status does not count yet. Victims holds their names by UID, and Gone holds the deletion times of
// the deleted victims.
type Used struct {
	Budget  cluster.Name
	Victims map[types.UID]string
	Gone    map[types.UID]time.Time `json:",omitempty"`
}

// saveUsed returns the budget in the form from which a successor of this core resumes.
func (b *usedBudget) saveUsed(name cluster.Name) Used {
	u := Used{name, map[types.UID]string{}, map[types.UID]time.Time{}}
	for uid, victim := range b.victims {
		if u.Victims[uid] = victim.name; !victim.gone.IsZero() {
			u.Gone[uid] = victim.gone
		}
	}
	return u
}

// resumedBudget is the reverse of saveUsed. shown is the budget that the new core observed from the
// API.
func resumedBudget(shown *policyv1.PodDisruptionBudget, u Used) *usedBudget {
	b := &usedBudget{shown: shown, victims: map[types.UID]usedVictim{}}
	for uid, name := range u.Victims {
		b.victims[uid] = usedVictim{name, u.Gone[uid]}
	}
	return b
}

// countedWithin is the assumed maximum time until the budget in the API accounts for a deleted pod.
// If the pod has been replaced by then, the budget may be unchanged, so that no watch shows it
// again.
const countedWithin = 2 * time.Minute

// budgetSeen returns a budget shown by the API, reduced by the victims still unknown to the API. It
// discards the earlier reduction and recounts the pending victims.
func (pr *preemptions) budgetSeen(budget *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	pr.cluster.CoveredBy(budget) // computed now rather than during an attempt
	delete(pr.budgets, nameOf(budget))
	return pr.reduceBudget(budget, "")
}

func (pr *preemptions) budgetGone(name cluster.Name) { delete(pr.budgets, name) }

// countVictims recomputes the budgets after a victim was chosen, or after spared turned out not to
// be removed.
func (pr *preemptions) countVictims(spared types.UID) {
	for _, name := range pr.budgetsInUse(spared) {
		budget, ok := pr.cluster.Budgets.Get(name.Namespace, name.Name)
		if !ok {
			continue
		}
		shown := budget
		if used := pr.budgets[name]; used != nil {
			shown = used.shown
		}
		if now := pr.reduceBudget(shown, spared); now.Status.DisruptionsAllowed != budget.Status.DisruptionsAllowed {
			pr.cluster.Budgets.Set(now)
		}
	}
}

// budgetsInUse lists, sorted, the reduced budgets and the budgets covering a pending victim.
func (pr *preemptions) budgetsInUse(spared types.UID) []cluster.Name {
	names := sets.KeySet(pr.budgets)
	cover := func(victim types.UID) {
		if p := pr.cluster.Pod(victim); p != nil && pr.keepsBudgets {
			for _, b := range pr.cluster.BudgetsOf(p.Class) {
				names.Insert(nameOf(b))
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
	return slices.SortedFunc(maps.Keys(names), compareNames)
}

// reduceBudget returns the budget reduced by the pending victims. If no profile is required to
// respect budgets, it returns the budget unchanged, as kube-scheduler uses it. It follows the
// Eviction API: each victim lowers DisruptionsAllowed by one and, while it exists, is listed in
// DisruptedPods, so that plugins do not count it again. The result is a copy; shown is not changed.
//
//	shown:      DisruptionsAllowed 2, DisruptedPods {}
//	victims:    a (still running), b (deleted)
//	reduced to: DisruptionsAllowed 0, DisruptedPods {a}
func (pr *preemptions) reduceBudget(shown *policyv1.PodDisruptionBudget, spared types.UID) *policyv1.PodDisruptionBudget {
	if !pr.keepsBudgets {
		return shown
	}
	selector := pr.cluster.CoveredBy(shown)
	if selector == nil {
		return shown
	}

	used := pr.budgets[nameOf(shown)]
	if used == nil {
		used = &usedBudget{shown: shown, victims: map[types.UID]usedVictim{}}
	}

	delete(used.victims, spared)
	for uid := range pr.leaving {
		pr.countVictim(used, uid, selector)
	}

	for b := range pr.binding {
		pr.countVictim(used, b.Pod.UID, selector)
	}
	if len(used.victims) == 0 {
		delete(pr.budgets, nameOf(shown))
		return shown
	}

	pr.budgets[nameOf(shown)] = used
	less := *shown
	less.Status.DisruptedPods = map[string]metav1.Time{}
	maps.Copy(less.Status.DisruptedPods, shown.Status.DisruptedPods)
	for _, victim := range used.victims {
		less.Status.DisruptionsAllowed--
		if victim.gone.IsZero() {
			less.Status.DisruptedPods[victim.name] = metav1.NewTime(pr.now)
		}
	}
	return &less
}

// isGone records the deletion of a pod. The budgets no longer list the pod as disrupted, because a
// new pod with the same name may be created, and counts for the budget.
func (pr *preemptions) isGone(pod types.UID) {
	for _, name := range slices.SortedFunc(maps.Keys(pr.budgets), compareNames) {
		used := pr.budgets[name]
		if victim, counts := used.victims[pod]; counts {
			victim.gone = pr.now
			used.victims[pod] = victim
			pr.recountAt(pr.now.Add(countedWithin))
			pr.cluster.Budgets.Set(pr.reduceBudget(used.shown, ""))
		}
	}
}

// recountAt schedules forgetCounted to recount the budgets, unless an earlier recount is already
// scheduled.
func (pr *preemptions) recountAt(at time.Time) { pr.recount = pacing.Sooner(pr.recount, at) }

// forgetCounted drops the victims deleted long enough ago for the API to account for them. Since
// the budgets then allow more disruptions, it wakes the pods blocked from preempting. It cannot
// rely on a watch event, because an unchanged budget is not shown again.
func (pr *preemptions) forgetCounted() {
	if pr.recount.IsZero() || pr.now.Before(pr.recount) {
		return
	}

	pr.recount = time.Time{}
	for _, name := range slices.SortedFunc(maps.Keys(pr.budgets), compareNames) {
		used, before := pr.budgets[name], len(pr.budgets[name].victims)
		maps.DeleteFunc(used.victims, func(_ types.UID, v usedVictim) bool {
			return !v.gone.IsZero() && pr.now.Sub(v.gone) >= countedWithin
		})
		if len(used.victims) < before {
			reduced, _ := pr.cluster.Budgets.Get(name.Namespace, name.Name)
			now := pr.reduceBudget(used.shown, "")
			pr.cluster.Budgets.Set(now)
			pr.events.objectChanged(queue.Budget, reduced, now)
		}
		pr.recountBudget(used)
	}
}

// recountBudget schedules forgetCounted for the time at which the API accounts for the budget's
// first deleted victim.
func (pr *preemptions) recountBudget(used *usedBudget) {
	for _, victim := range used.victims {
		if !victim.gone.IsZero() {
			pr.recountAt(victim.gone.Add(countedWithin))
		}
	}
}

// countVictim counts a victim if the budget covers it. A victim listed in DisruptedPods by the API
// is already counted.
func (pr *preemptions) countVictim(b *usedBudget, victim types.UID, selector *rules.Selector) {
	p := pr.cluster.Pod(victim)
	if p == nil || p.Namespace() != b.shown.Namespace || !selector.Matches(p.Class.Labels) {
		return
	}
	if _, counted := b.shown.Status.DisruptedPods[p.Name()]; !counted {
		b.victims[victim] = usedVictim{name: p.Name()}
	}
}
