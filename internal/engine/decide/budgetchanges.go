// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"iter"
	"maps"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// budgetChanges tracks disruption budgets for the cached victims of each node. The status of a PDB
// changes with every covered pod added or removed, but nearly every such change concerns few nodes
// or none.
//
// Positions only grow. A reader with a position before first has missed changes, and must recompute
// every node.
type budgetChanges struct {
	version uint64
	known   map[cluster.Name]budgetState // nil: no budgets have been read
	// concerned lists, by position, the nodes on which the set of budget-violating victims may have
	// changed. first is the position of the first entry.
	concerned []int32
	first     int
	followed  bool // budgets were read since the last call of dropUnused
}

// budgetState is the part of a budget that affects the choice of victims.
type budgetState struct {
	selector *rules.Selector // nil: the budget covers no pod
	allowed  int32
	leaving  map[string]metav1.Time // DisruptedPods: pods that no longer count, by name
}

func (ix *index) stateOf(budget *policyv1.PodDisruptionBudget) budgetState {
	return budgetState{ix.c.CoveredBy(budget), max(0, budget.Status.DisruptionsAllowed), budget.Status.DisruptedPods}
}

// position returns the position of an up-to-date reader.
func (b *budgetChanges) position() int { return b.first + len(b.concerned) }

// concernedSince lists the nodes concerned by changes since a position. If the position is too old,
// known is false, and all nodes may be concerned.
func (b *budgetChanges) concernedSince(position int) (nodes []int32, known bool) {
	if position < b.first {
		return nil, false
	}
	return b.concerned[position-b.first:], true
}

// followBudgets reads the changes of the budgets.
func (b *budgetChanges) followBudgets(ix *index) {
	table := &ix.c.Budgets
	names, known := table.Since(b.version)
	b.version, b.followed = table.Version, true
	if !known || b.known == nil {
		b.startOver()
		b.known = map[cluster.Name]budgetState{}
		for budget := range table.Each {
			b.known[cluster.Name{Namespace: budget.Namespace, Name: budget.Name}] = ix.stateOf(budget)
		}
		return
	}

	enough := ix.c.Looks + ix.limits.Effort/4
	for _, name := range names {
		before := b.known[name]
		if ix.c.Looks > enough { // stop comparing and start over: recomputing all nodes has a bounded cost
			b.known = nil
			b.followBudgets(ix)
			return
		}
		if budget, there := table.Get(name.Namespace, name.Name); there {
			after := ix.stateOf(budget)
			b.known[name] = after
			b.compareStates(ix, name.Namespace, &before, &after)
		} else {
			delete(b.known, name)
			b.addCovered(ix, name.Namespace, before.selector, 0)
		}
	}
	if most := 1<<10 + 4*len(ix.c.Nodes); len(b.concerned) > most { // readers that are further behind start over
		b.startOver()
	}
}

// startOver invalidates all positions handed out so far.
func (b *budgetChanges) startOver() { b.first, b.concerned = b.position()+1, nil }

// dropUnused drops the recorded budgets if they are outdated and no preemption was attempted since
// its last call. Some of these budgets may have been deleted.
func (b *budgetChanges) dropUnused(table *cluster.Table[*policyv1.PodDisruptionBudget]) {
	if !b.followed && b.version != table.Version {
		b.startOver()
		b.known = nil
	}
	b.followed = false
}

func (b *budgetChanges) compareStates(ix *index, namespace string, before, after *budgetState) {
	if before.selector != after.selector {
		b.addCovered(ix, namespace, before.selector, 0)
		b.addCovered(ix, namespace, after.selector, 0)
		return
	}
	// Victims in excess of a budget's allowance violate the budget.
	if before.allowed != after.allowed {
		b.addCovered(ix, namespace, after.selector, min(before.allowed, after.allowed))
	}
	names := map[string]bool{}
	for _, pair := range [...][2]*budgetState{{before, after}, {after, before}} {
		for name := range pair[0].leaving {
			if _, both := pair[1].leaving[name]; !both {
				names[name] = true
			}
		}
	}
	if len(names) > 0 {
		b.addNamed(ix, namespace, after.selector, names)
	}
}

// addCovered adds the nodes with more than the given number of pods covered by the selector.
func (b *budgetChanges) addCovered(ix *index, namespace string, selector *rules.Selector, more int32) {
	sums := map[int32]int32{}
	for _, pods := range ix.coveredLooks(namespace, selector) {
		for node, n := range pods.nodes.all {
			sums[node] += n.staying + n.leaving
		}
	}
	maps.DeleteFunc(sums, func(_, n int32) bool { return n <= more })
	b.addNodes(maps.Keys(sums))
}

// addNodes adds nodes in a fixed order, since an attempt may exhaust its effort before the last
// node.
func (b *budgetChanges) addNodes(nodes iter.Seq[int32]) {
	b.concerned = append(b.concerned, slices.Sorted(nodes)...)
}

// addNamed adds the nodes of all pods that have one of the names and are covered by the selector.
func (b *budgetChanges) addNamed(ix *index, namespace string, selector *rules.Selector, names map[string]bool) {
	nodes := map[int32]bool{}
	for _, pods := range ix.coveredLooks(namespace, selector) {
		for node := range pods.nodes.all {
			nodes[node] = true
		}
	}
	maps.DeleteFunc(nodes, func(node int32, _ bool) bool {
		return !slices.ContainsFunc(ix.c.Nodes[node].Pods, func(p *cluster.Pod) bool { return names[p.Name()] && p.Namespace() == namespace })
	})
	b.addNodes(maps.Keys(nodes))
}

// coveredLooks lists the looks of a namespace covered by a selector; nil covers none. The list is
// valid until the next search.
func (ix *index) coveredLooks(namespace string, selector *rules.Selector) (looks []*lookPods) {
	if selector == nil {
		return nil
	}
	ix.nameKeys(selector)
	p := &ix.placed
	p.beginSearch()
	labels, everybody := cluster.RequiredLabels(selector)
	if everybody {
		for pods := range p.looks.All {
			p.found = append(p.found, pods)
		}
	}

	for _, at := range labels {
		p.findLooks(&p.byLabel, shortHashOf(at.Key, at.Value))
	}
	looks = p.found[:0]
	for _, pods := range p.found {
		if ix.c.Looks++; pods.class.Namespace != namespace {
			continue
		}
		if ix.c.Looks += selector.Looks(pods.class.Labels); selector.Matches(pods.class.Labels) {
			looks = append(looks, pods)
		}
	}

	return looks
}
