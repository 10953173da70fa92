// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"
	"slices"
)

// chooseNode finds the best node.
func (r *ranking) chooseNode(t *tie) choice {
	feasible := r.markFeasible()
	if feasible == 0 {
		return choice{node: none}
	}
	if r.fine != nil {
		return r.chooseFinely(t, feasible)
	}

	r.weighSpread(r.weighConstraints(nil))
	b := r.findBounds()
	if r.flat != nil {
		top := r.flat.highestOf()
		node := r.flat.nth(t.draw(int(top.many)), top)
		if p := t.preferred; p != none && int(p) < len(r.flat.numbers) && r.flat.numbers[p] == top.height {
			node = p
		}
		return chosen(node, r.fixedScore(r.groups[r.live], &b)+int64(top.height), feasible)
	}

	best, total := r.bestGroups(&b)
	node := pickFrom(best, t)
	if p := t.preferred; p != none && int(p) < len(r.bucket) && r.bucket[p] >= 0 {
		if g := r.groups[r.at[p].group]; slices.Contains(best, g) && int(r.bucket[p]) == g.highestBucket() {
			node = p
		}
	}
	return chosen(node, total, feasible)
}

// bestGroups returns the groups with the best nodes, and the total of these nodes. The list is
// valid until the next call.
func (r *ranking) bestGroups(b *bounds) (best []*group, total int64) {
	best, total = r.space.best[:0], math.MinInt64
	for _, g := range r.groups {
		if g.ok == 0 || !g.feasible {
			continue
		}
		switch sum := r.fixedScore(g, b) + int64(g.highestBucket()); {
		case sum > total:
			best, total = append(best[:0], g), sum
		case sum == total:
			best = append(best, g)
		}
	}
	r.space.best = best[:0]
	return best, total
}

// listTies returns, sorted, all nodes that chooseNode may choose.
func (r *ranking) listTies() (nodes []int32) {
	if r.markFeasible() == 0 {
		return nil
	}
	if r.fine != nil {
		nodes, _ := r.finestNodes()
		return slices.Sorted(slices.Values(nodes))
	}
	if r.flat != nil {
		top := r.flat.highestOf()
		for n := range int(top.many) {
			nodes = append(nodes, r.flat.nth(n, top))
		}
		return nodes
	}

	r.weighSpread(r.weighConstraints(nil))
	b := r.findBounds()
	best, _ := r.bestGroups(&b)
	for _, g := range best {
		nodes = append(nodes, g.buckets[g.highestBucket()]...)
	}

	slices.Sort(nodes)
	return nodes
}

// chosen returns a choice. Like upstream, it leaves the total at 0 if only one node is feasible.
func chosen(node int32, total int64, feasible int) choice {
	if feasible == 1 {
		total = 0
	}
	return choice{node, total, feasible}
}

// weighConstraints weighs the soft constraints. among lists the feasible nodes to consider; nil
// means all.
func (r *ranking) weighConstraints(among []int32) []float64 {
	if len(r.plan.soft) == 0 {
		return nil
	}
	weights := r.space.weights[:0]
	for k, t := range r.tallies {
		weights = append(weights, 0)
		if t.purpose != spreadSoft {
			continue
		}
		if t.byCount && !t.constraint.PerNode() {
			weights[k] = t.constraint.Weight(r.domainsOf(t, among))
		} else {
			weights[k] = t.constraint.Weight(r.domainsScored(k, t))
		}
	}

	r.space.weights = weights
	return weights
}

// domainsOf counts the domains node by node, for tallies whose groups do not distinguish domains.
func (r *ranking) domainsOf(t *tally, among []int32) (n int) {
	clear(r.scratch.seen)
	count := func(node int32) {
		if r.bucket[node] >= 0 && r.isScored(r.groups[r.at[node].group]) && r.scratch.markSeen(t.countsIn(node)) {
			n++
		}
	}
	for _, node := range among {
		count(node)
	}
	if among == nil {
		for node := range r.bucket {
			count(int32(node))
		}
	}
	return n
}

// chooseFinely chooses among the nodes with the highest total by their fine scores; see
// plugins.Scoring.
func (r *ranking) chooseFinely(t *tie, feasible int) choice {
	nodes, total := r.finestNodes()
	node := nodes[t.draw(len(nodes))]
	if slices.Contains(nodes, t.preferred) {
		node = t.preferred
	}
	return chosen(node, total, feasible)
}

// finestNodes returns the best nodes by total and fine score, and their total. There is at least
// one.
func (r *ranking) finestNodes() (nodes []int32, total int64) {
	r.weighSpread(r.weighConstraints(nil))
	b := r.findBounds()
	nodes = r.space.asked[:0]
	if r.flat != nil {
		top := r.flat.highestOf()
		for i, height := range r.flat.numbers {
			if height == top.height {
				nodes = r.keepFiner(nodes, int32(i))
			}
		}
		r.space.asked = nodes
		return nodes, r.fixedScore(r.groups[r.live], &b) + int64(top.height)
	}

	best, total := r.bestGroups(&b)
	for _, g := range best {
		for _, node := range g.buckets[g.highestBucket()] {
			nodes = r.keepFiner(nodes, node)
		}
	}

	r.space.asked = nodes
	return nodes, total
}

// keepFiner adds a node to the list of nodes with the highest fine score, restarts the list with
// the node, or skips the node.
func (r *ranking) keepFiner(nodes []int32, node int32) []int32 {
	switch {
	case len(nodes) == 0, r.fine[node] == r.fine[nodes[0]]:
		return append(nodes, node)
	case r.fine[node] > r.fine[nodes[0]]:
		return append(nodes[:0], node)
	}
	return nodes
}

// fineOf returns a node's fine score, or 0 if the ranking has no fine scores.
func (r *ranking) fineOf(node int32) int64 {
	if r.fine == nil {
		return 0
	}
	return r.fine[node]
}
