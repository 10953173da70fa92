// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// askedCandidates are the preemption candidates for a pod with filters that must run on each node,
// such as volume filters. The candidates cached for its class ignore these filters. The cached cost
// of a node is valid for the pod if these filters pass the node regardless of the pods removed from
// it. The costs of all other nodes are computed for this pod only.
//
// A filter that does not read the pods on a node either disqualifies the node or leaves its cost
// unchanged. Such filters therefore run last, on the cheapest nodes.
type askedCandidates struct {
	*candidates
	t     *hypothesis
	asked []judge // judges that do not read the pods on nodes

	// out and computed are bit sets by block: the nodes disqualified for this pod, and the nodes
	// with costs computed for this pod.
	out, computed []uint64
	costs         map[int32]cost // costs of the computed nodes
	cheapest      []int32        // by block: cheapest node; none: the block has no candidate
}

// asks reports whether any filter must run on each node.
func (t *hypothesis) asks() bool {
	return slices.ContainsFunc(t.questions.judges, func(j judge) bool { return j != nil })
}

// askCandidates refreshes the cached costs. Filters that read the pods of a node run here, on all
// nodes. Most calls of the other filters are left to cheapestNode. It returns nil if it cannot
// determine the costs, because a filter cannot predict its verdict after the removal of pods, or
// because the effort is exhausted.
func askCandidates(known *candidates, t *hypothesis, b *budgets, left *effort.Budget) *askedCandidates {
	a := &askedCandidates{candidates: known, t: t, costs: map[int32]cost{}}
	var sure []surely
	for i, judge := range t.questions.judges {
		switch surely := t.questions.surely[i]; {
		case judge == nil:
		case readsOf(t.r.plan.asked[i].filter, t.p)&plugins.Contents == 0:
			a.asked = append(a.asked, judge)
		case surely != nil:
			sure = append(sure, surely)
		default:
			return nil
		}
	}
	if len(t.questions.again) > 0 {
		return nil
	}

	known.refreshCosts(&hypothesis{r: t.r, p: t.p}, b, left)
	if len(known.unknown) > 0 {
		return nil
	}
	a.cheapest, a.out, a.computed = slices.Clone(known.cheapest), make([]uint64, len(known.cheapest)), make([]uint64, len(known.cheapest))
	c := t.r.ix.c
	for _, n := range c.NominatedNodes() { // these nodes are also judged with the nominated pods, which surely ignores
		a.compute(n.Index, b, left)
	}
	for i := range known.byNode {
		if k := &known.byNode[i]; k.fits || len(sure) > 0 && k.dependsOnChoice() && !surelyPasses(sure, c.Nodes[i]) {
			a.compute(int32(i), b, left)
		}
	}
	t.r.ix.meter.Work += len(known.byNode) * len(sure) / asksAJudgement

	if left.IsSpent() {
		return nil
	}
	for block := range a.cheapest {
		if a.out[block]|a.computed[block] != 0 {
			a.compareBlock(block)
		}
	}
	return a
}

// asksAJudgement is the number of filter calls that cost as much as one judgement.
const asksAJudgement = 4

// dependsOnChoice reports whether a different choice of victims could make the node a candidate or
// change its cost.
func (k *cost) dependsOnChoice() bool {
	return k.candidate || k.why != nil && k.why.plugin == "" && k.why.rejection != noVictims
}

func surelyPasses(sure []surely, n *cluster.Node) bool {
	for _, surely := range sure {
		if !surely(n) {
			return false
		}
	}
	return true
}

// compute computes the cost of a node for this pod only.
func (a *askedCandidates) compute(node int32, b *budgets, left *effort.Budget) {
	if left.IsSpent() || a.isComputed(node) {
		return
	}
	if !a.suits(node) {
		a.leaveOut(node)
		return
	}
	a.computed[node>>6] |= 1 << (node & 63)
	a.costs[node] = a.t.costOfNode(node, b)
	spent := effort.CostOfPod(a.t.p) * (costOfFirstLook + a.t.judged)
	left.Spend(spent)
	a.t.r.ix.meter.Work += spent
}

func (a *askedCandidates) isComputed(node int32) bool { return a.computed[node>>6]>>(node&63)&1 != 0 }
func (a *askedCandidates) isOut(node int32) bool      { return a.out[node>>6]>>(node&63)&1 != 0 }
func (a *askedCandidates) leaveOut(node int32)        { a.out[node>>6] |= 1 << (node & 63) }

// costOf returns the cost of a node that is not left out: the cost computed for this pod, or else
// the cached cost.
func (a *askedCandidates) costOf(node int32) *cost {
	if a.isComputed(node) {
		k := a.costs[node]
		return &k
	}
	return &a.byNode[node]
}

// compareBlock finds the cheapest node of a block.
func (a *askedCandidates) compareBlock(block int) {
	best := none
	for i := block << 6; i < min(block<<6+64, len(a.byNode)); i++ {
		if k := a.costOf(int32(i)); k.candidate && !a.isOut(int32(i)) && (best == none || k.compare(a.costOf(best)) < 0) {
			best = int32(i)
		}
	}
	a.cheapest[block] = best
}

// cheapestNode is the counterpart of candidates.cheapestNode with the filters applied, and makes
// the same draws.
func (a *askedCandidates) cheapestNode(t *tie, preferred int32) int32 {
	best := cheapestNode(a.cheapest, t, a.costOf, a.askBlock)
	if best != none && preferred != none && int(preferred) < len(a.byNode) {
		if p := a.costOf(preferred); p.candidate && p.compare(a.costOf(best)) == 0 && !a.isOut(preferred) && a.suits(preferred) {
			return preferred
		}
	}
	return best
}

// suits reports whether the filters pass a node.
func (a *askedCandidates) suits(node int32) bool {
	if a.isComputed(node) {
		return true
	}
	for _, judge := range a.asked {
		if judge(a.t.r.ix.c.Nodes[node]) != nil {
			return false
		}
	}
	return true
}

// askBlock returns the cheapest suitable node of a block. After a few unsuitable nodes, it filters
// the whole block.
func (a *askedCandidates) askBlock(block int) int32 {
	const few = 4
	for asked := 0; a.cheapest[block] != none && !a.suits(a.cheapest[block]); asked++ {
		a.leaveOut(a.cheapest[block])
		for i := block << 6; asked == few && i < min(block<<6+64, len(a.byNode)); i++ {
			if node := int32(i); a.costOf(node).candidate && !a.isOut(node) && !a.suits(node) {
				a.leaveOut(node)
			}
		}
		a.compareBlock(block)
	}
	a.t.r.ix.meter.Work++
	return a.cheapest[block]
}
