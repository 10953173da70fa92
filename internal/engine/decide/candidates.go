// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// candidates caches the cost of making room on each node for the pods of one class. Most nodes are
// unchanged between two preemptions, so only the costs of changed nodes are recomputed. The
// cheapest node of every block of 64 is kept, so the overall cheapest is found by comparing blocks.
//
// It is valid for one position of the log, one position of budgetChanges, and one set of verdicts
// of the filtering tallies.
//
// It ignores filters that must run on each node, because their verdicts may differ between pods of
// one class; see askedCandidates.
type candidates struct {
	rebuilds      int // value of ranking.rebuilds; a rebuild renumbers the groups and invalidates the candidates
	seen          int // position in the log
	budgets       int // position in index.budgets
	filterVersion int // value of ranking.filterVersion

	byNode   []cost
	unknown  []int32 // nodes with costs to be computed, possibly with duplicates
	cheapest []int32 // by block: cheapest node; none: the block has no candidate
}

// cheapestNode returns the cheapest node, or none. Ties are broken in favor of the preferred node
// if it is among the cheapest nodes, otherwise at random.
func (c *candidates) cheapestNode(t *tie, preferred int32) int32 {
	costOf := func(node int32) *cost { return &c.byNode[node] }
	best := cheapestNode(c.cheapest, t, costOf, func(block int) int32 { return c.cheapest[block] })
	if best != none && preferred != none && int(preferred) < len(c.byNode) {
		if p := &c.byNode[preferred]; p.candidate && p.compare(&c.byNode[best]) == 0 {
			return preferred
		}
	}
	return best
}

// cheapestNode returns the cheapest node of all blocks, or none. Ties are broken at random. ask
// returns the cheapest node of a block that passes the filters, or none. It is not called for a
// block whose cheapest node costs more than the best node so far, since filters cannot reduce the
// cost of a block.
func cheapestNode(cheapest []int32, t *tie, costOf func(node int32) *cost, ask func(block int) int32) int32 {
	best, ties := none, 0
	for block, node := range cheapest {
		if node == none || best != none && costOf(node).compare(costOf(best)) > 0 {
			continue
		}
		if node = ask(block); node == none {
			continue
		}

		order := -1
		if best != none {
			order = costOf(node).compare(costOf(best))
		}
		switch {
		case order < 0:
			best, ties = node, 1
		case order == 0:
			if ties++; t.draw(ties) == 0 {
				best = node
			}
		}
	}
	return best
}

// compareBlock finds the cheapest node of a block.
func (c *candidates) compareBlock(block int) {
	best := none
	for i := block << 6; i < min(block<<6+64, len(c.byNode)); i++ {
		if c.byNode[i].candidate && (best == none || c.byNode[i].compare(&c.byNode[best]) < 0) {
			best = int32(i)
		}
	}
	c.cheapest[block] = best
}

// countReasons counts nodes by the reason why preemption does not help there, and lists the
// responsible plugins.
func (c *candidates) countReasons(r *ranking) (reasons map[string]int, names []string) {
	reasons = map[string]int{}
	others := r.ix.c.Len()
	for i := range c.byNode {
		if why := c.byNode[i].why; why != nil {
			others--
			for _, reason := range why.rejection.Reasons {
				reasons[reason]++
			}
			names = why.addName(names)
		}
	}
	if others > 0 {
		reasons[notHelpful] += others
	}
	return reasons, names
}

// refreshCosts recomputes the costs of the nodes changed since its last call, until the effort is
// exhausted. The remaining nodes stay in unknown, and are not candidates until their costs are
// computed.
func (c *candidates) refreshCosts(t *hypothesis, b *budgets, left *effort.Budget) {
	r := t.r
	cl, log := r.ix.c, &r.ix.c.Log
	news := &r.ix.budgets
	news.followBudgets(r.ix)

	concerned, follows := news.concernedSince(c.budgets)
	switch {
	case !follows || c.byNode == nil:
		*c, concerned = candidates{rebuilds: c.rebuilds, filterVersion: r.filterVersion}, nil
	case c.filterVersion != r.filterVersion:
		c.followTallies(r)
	}

	c.budgets = news.position()
	changes, ok := log.Since(c.seen)
	if !ok || len(c.byNode) < len(cl.Nodes) {
		c.byNode, c.unknown = make([]cost, len(cl.Nodes)), c.unknown[:0]
		c.cheapest = make([]int32, (len(cl.Nodes)+63)/64)
		for i := range cl.Nodes {
			c.unknown = append(c.unknown, int32(i))
		}
		changes = nil
	}

	for i := range changes {
		c.unknown = append(c.unknown, changes[i].Node)
	}
	c.unknown = append(c.unknown, concerned...)
	c.seen = log.Len()
	for _, node := range c.unknown {
		c.byNode[node] = cost{}
	}

	var bounds []cost
	if t.questions.releasing != nil {
		bounds = c.sortByBound(t)
	}
	var best cost
	each, done := effort.CostOfPod(t.p)+len(r.tallies)/8, 0
	for i, node := range c.unknown {
		if left.IsSpent() {
			break
		}
		if bounds != nil && best.candidate && bounds[i].compare(&best) > 0 {
			c.byNode[node] = cost{known: true}
		}
		if !c.byNode[node].known {
			c.byNode[node] = t.costOfNode(node, b)
			if k := &c.byNode[node]; k.candidate && (!best.candidate || k.compare(&best) < 0) {
				best = *k
			}
			left.Spend(each * (costOfFirstLook + t.judged))
			if r.ix.meter.Work++; t.judged > 0 {
				r.ix.meter.Work += each * (costOfFirstLook + t.judged)
			}
		}
		done++
	}

	last := -1
	for _, node := range c.unknown {
		if block := int(node >> 6); block != last {
			c.compareBlock(block)
			last = block
		}
	}
	c.unknown = slices.Delete(c.unknown, 0, done)
}

// sortByBound sorts the unknown nodes by lower bounds of their costs, and returns these bounds. An
// examination with claims costs so much that nodes that cannot be the cheapest are left out. Nodes
// whose claims are about to be released come first, because the pod waits for them.
func (c *candidates) sortByBound(t *hypothesis) []cost {
	byNode := make([]cost, len(c.byNode))
	for _, node := range c.unknown {
		n, k := t.r.ix.c.Nodes[node], &byNode[node]
		if *k = (cost{highest: math.MaxInt32}); n == nil || t.r.bucket[node] <= ^settled {
			continue
		}
		if t.questions.releasing(n) {
			k.highest = math.MinInt32
			continue
		}
		for _, o := range n.Pods { // at best, one of the least important pods is the only victim
			if start := startNegated(startOf(o)); o.Class.Priority < min(k.highest, t.p.Class.Priority) {
				*k = cost{highest: o.Class.Priority, victims: 1, sum: int64(o.Class.Priority) + math.MaxInt32 + 1, start: start}
			} else if o.Class.Priority == k.highest {
				k.start = min(k.start, start)
			}
		}
	}

	slices.SortStableFunc(c.unknown, func(a, b int32) int { return byNode[a].compare(&byNode[b]) })
	c.unknown = slices.Compact(c.unknown)
	bounds := make([]cost, len(c.unknown))
	for i, node := range c.unknown {
		bounds[i] = byNode[node]
	}
	return bounds
}

// costOfFirstLook is the effort, in judgements, of examining a node before removing any pod.
const costOfFirstLook = 10

// forgetNode marks a node for recomputation.
func (c *candidates) forgetNode(n *cluster.Node) {
	if int(n.Index) < len(c.byNode) {
		c.unknown = append(c.unknown, n.Index)
	}
}

// followTallies marks nodes for recomputation if the tallies' verdict on them may have changed.
func (c *candidates) followTallies(r *ranking) {
	c.filterVersion = r.filterVersion
	type answer struct {
		known bool
		*plugins.Rejection
	}
	answers := make([]answer, len(r.groups))

	for node := range c.byNode {
		k := &c.byNode[node]
		if !k.known || r.bucket[node] == absent {
			continue
		}
		a := &answers[r.groupAt(int32(node))]
		if !a.known {
			*a = answer{true, judgeByTallies(r, r.groupAt(int32(node)))}
		}
		if k.tied || k.tallied != a.Rejection {
			c.unknown = append(c.unknown, int32(node))
		}
	}
}

// judgeByTallies returns the rejection of a group by the tallies; nil if its nodes are rejected
// before the tallies are consulted.
func judgeByTallies(r *ranking, group int32) *plugins.Rejection {
	g := r.groups[group]
	if len(r.tallies) == 0 || r.statics[g.key.static].early != nil {
		return nil
	}
	_, rejection := r.judgeTallies(r.countsOf(g))
	return rejection
}

// isTied reports whether potential victims on the node, or pods nominated to it, count in a
// filtering tally.
func (t *hypothesis) isTied(n *cluster.Node) bool {
	return len(n.Nominated) > 0 || slices.ContainsFunc(n.Pods, func(o *cluster.Pod) bool {
		return o.Class.Priority < t.p.Class.Priority && slices.ContainsFunc(t.r.effectsOf(o.Class), func(e effect) bool {
			purpose := t.r.tallies[e.tally].purpose
			return purpose != spreadSoft && purpose != vote
		})
	})
}

// costOfNode computes the cost of one node.
func (t *hypothesis) costOfNode(node int32, b *budgets) cost {
	n := t.r.ix.c.Nodes[node]
	t.judged = 0
	if n == nil {
		return cost{known: true}
	}
	c := t.costOfVictims(n, b)
	if len(t.r.tallies) > 0 {
		c.tied, c.tallied = t.isTied(n), judgeByTallies(t.r, t.r.groupAt(node))
	}
	return c
}

func (t *hypothesis) costOfVictims(n *cluster.Node, b *budgets) cost {
	rejection := t.judgeAsIs(n)
	if rejection == nil || rejection.Unresolvable {
		return cost{known: true, fits: rejection == nil}
	}
	found, why := t.victimsOn(n, b)
	if why == nil {
		return found.cost()
	}
	if rejection.Held && t.fitsReleased(n) {
		why = &refusal{rejection: why.rejection, awaits: true}
	}
	return cost{known: true, why: why}
}

// bytes estimates the memory of the candidates.
func (c *candidates) bytes() int { return 72 * len(c.byNode) }
