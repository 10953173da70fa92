package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// askedCandidates are the candidates for a pod with filters that are asked node by node, such as
// those for volumes. What is remembered for its class leaves these filters out, and holds for each
// node that they let pass whichever pods leave it. The others are computed for this pod alone.
//
// A filter that does not look at the pods of a node either changes nothing about it, or makes it no
// candidate. So such filters are asked last, about the cheapest nodes.
type askedCandidates struct {
	*candidates
	t     *hypothesis
	asked []judge // filters that do not look at the pods of nodes

	// By block: the nodes that are no candidates for this pod, and those whose costs are computed
	// for it, as bits.
	out, computed []uint64
	costs         map[int32]cost // of those
	cheapest      []int32        // by block; none: it has no candidate
}

// asks reports whether there is a filter to ask.
func (t *hypothesis) asks() bool {
	for _, judge := range t.questions.judges {
		if judge != nil {
			return true
		}
	}
	return false
}

// askCandidates brings what is known up to date, and asks about all nodes what depends on their
// pods. It returns nil if that is not enough to know the costs: a filter does not say what would be
// without some of the pods, or the effort is used up.
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
	for _, n := range c.NominatedNodes() { // with these pods there is more on the node than now
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

// asksAJudgement is how many filters are asked about a node in the time of one judgement.
const asksAJudgement = 4

// dependsOnChoice reports whether another choice of victims could make the node a candidate, or
// another one.
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

// compute computes the cost of a node for this pod alone.
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

// costOf returns the cost of a node that is not left out, as far as it is known.
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

// cheapestNode does what that of candidates does, with the same draws. A block whose cheapest node
// is dearer than the best so far need not be asked about: without that node it is dearer still.
func (a *askedCandidates) cheapestNode(t *tie, preferred int32) int32 {
	best, ties := none, 0
	for block := range a.cheapest {
		node := a.cheapest[block]
		if node == none || best != none && a.costOf(node).compare(a.costOf(best)) > 0 {
			continue
		}
		if node = a.askBlock(block); node == none {
			continue
		}

		order := -1
		if best != none {
			order = a.costOf(node).compare(a.costOf(best))
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

	if best != none && preferred != none && int(preferred) < len(a.byNode) {
		if p := a.costOf(preferred); p.candidate && p.compare(a.costOf(best)) == 0 && !a.isOut(preferred) && a.suits(preferred) {
			return preferred
		}
	}
	return best
}

// suits reports whether the filters let a node pass.
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

// askBlock returns the cheapest node of a block that suits. After a few that do not, it asks about
// all.
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
