// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Budget is a PodDisruptionBudget with its parsed selector.
type Budget struct {
	*policyv1.PodDisruptionBudget
	selector *rules.Selector // nil: it covers no pod
}

// budgetIndex finds the budgets that cover the pods of a class. It follows the table of budgets. A
// selector is parsed when it changes, not for every preemption, because there may be thousands of
// budgets. The status of budgets changes with every pod and is ignored.
type budgetIndex struct {
	selectors objectSelectors
	version   uint64                  // version of the table reflected by spaces
	spaces    map[string]*budgetSpace // by namespace; nil before the first query
}

// budgetSpace holds the budgets of one namespace. Changing a selector of the namespace clears
// covering; changing a status does not.
type budgetSpace struct {
	byName   map[string]*Budget
	covering map[*PodClass][]*Budget // budgets of the classes queried since a selector changed
	bulk     int                     // total bulk of these classes
	kept     int                     // the number of classes after the last cleanup
}

// mostCovered bounds the number of classes of a namespace with cached budgets.
const mostCovered = 1 << 12

// forgetCovering clears covering.
func (s *budgetSpace) forgetCovering() { s.covering, s.bulk, s.kept = map[*PodClass][]*Budget{}, 0, 0 }

// makeRoom drops the classes without placed pods if they may be many or large, and all classes if
// the rest is still too many or too large.
func (s *budgetSpace) makeRoom() {
	if len(s.covering) < min(worthDropping(s.kept), mostCovered) && s.bulk <= MostBulk {
		return
	}
	placed := map[*PodClass][]*Budget{}
	s.bulk = 0
	for class, budgets := range s.covering {
		if class.pods > 0 {
			placed[class] = budgets
			s.bulk += bulkOfCovered(class, budgets)
		}
	}
	if s.covering, s.kept = placed, len(placed); s.kept >= mostCovered || s.bulk > MostBulk {
		s.forgetCovering()
	}
}

// dropLarge drops large classes without placed pods.
func (s *budgetSpace) dropLarge() {
	if s.bulk == 0 {
		return
	}
	for class, budgets := range s.covering {
		if class.pods == 0 && class.Bulk > 0 {
			delete(s.covering, class)
			s.bulk -= bulkOfCovered(class, budgets)
		}
	}
}

// bulkOfCovered estimates the memory taken by a class and its cached budgets, beyond the usual
// size.
func bulkOfCovered(class *PodClass, budgets []*Budget) int { return class.Bulk + len(budgets)/64*512 }

// BudgetsOf returns the disruption budgets that cover the pods of a class, sorted by name. The list
// must not be modified, and is valid until the next change of the cluster.
func (c *Cluster) BudgetsOf(class *PodClass) []*Budget {
	if c.Budgets.Len() == 0 {
		return nil
	}
	covering, looks := c.budgets.coveringClass(&c.Budgets, class)
	c.Looks += looks
	return covering
}

// coveringClass returns the budgets that cover the pods of a class, and the number to add to
// Cluster.Looks.
func (x *budgetIndex) coveringClass(table *Table[*policyv1.PodDisruptionBudget], class *PodClass) (covering []*Budget, looks int) {
	x.follow(table)
	s := x.spaces[class.Namespace]
	if s == nil {
		return nil, 0
	}

	covering, known := s.covering[class]
	if !known {
		for _, object := range table.InNamespace(class.Namespace) {
			b := s.byName[object.Name]
			if b.selector == nil {
				continue
			}
			if looks += b.selector.Looks(class.Labels); b.selector.Matches(class.Labels) {
				covering = append(covering, b)
			}
		}
		s.makeRoom()
		s.covering[class] = covering
		s.bulk += bulkOfCovered(class, covering)
	}
	return covering, looks + 2*len(covering) // the caller examines each budget in the result
}

// follow catches up with the table, or rescans it. It is called for every query, and costs little
// unless a budget has changed.
func (x *budgetIndex) follow(table *Table[*policyv1.PodDisruptionBudget]) {
	names, known := table.Since(x.version)
	if known && x.spaces != nil {
		for _, name := range names {
			x.updateBudget(table, name)
		}
	} else {
		x.spaces = map[string]*budgetSpace{}
		for b := range table.Each {
			x.updateBudget(table, Name{b.Namespace, b.Name})
		}
	}
	x.version = table.Version
}

// updateBudget handles the addition, change or deletion of a budget.
func (x *budgetIndex) updateBudget(table *Table[*policyv1.PodDisruptionBudget], name Name) {
	object, there := table.Get(name.Namespace, name.Name)
	s := x.spaces[name.Namespace]
	switch {
	case !there && s == nil:
		return
	// A deleted budget may have covered any class of the namespace.
	case !there:
		delete(s.byName, name.Name)
		s.forgetCovering()
		if len(s.byName) == 0 {
			delete(x.spaces, name.Namespace)
		}
		return
	case s == nil:
		s = &budgetSpace{byName: map[string]*Budget{}}
		s.forgetCovering()
		x.spaces[name.Namespace] = s
	}

	selector := x.selectorOf(table, object)
	if b := s.byName[name.Name]; b != nil && b.selector == selector {
		b.PodDisruptionBudget = object
		return
	}

	s.byName[name.Name] = &Budget{PodDisruptionBudget: object, selector: selector}
	s.forgetCovering()
}

// CoveredBy returns the selector of the pods covered by a budget; nil if the budget covers no pods.
// The pointer is the same until the selector changes.
func (c *Cluster) CoveredBy(budget *policyv1.PodDisruptionBudget) *rules.Selector {
	return c.budgets.selectorOf(&c.Budgets, budget)
}

// selectorOf returns the selector of a budget, or nil if the budget covers no pod because its
// selector is invalid or missing. An empty selector covers all pods, as in the Eviction API and in
// Kubernetes v1.38 and later.
func (x *budgetIndex) selectorOf(table *Table[*policyv1.PodDisruptionBudget], b *policyv1.PodDisruptionBudget) *rules.Selector {
	selector, err := x.selectors.selectorOf(Name{b.Namespace, b.Name}, b.Spec.Selector, table.hasObject)
	if err != nil || selector == rules.Nothing() {
		return nil
	}
	return selector
}
