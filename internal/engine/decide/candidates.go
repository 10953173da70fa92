package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// candidates remembers what making room on each node would cost for the pods of one class. From one
// preemption to the next, most nodes stay as they are, and only those that changed are recomputed.
// The cheapest of every block of 64 nodes is kept, so that finding the cheapest of all compares
// blocks.
//
// It is valid up to a position of the log and of the news of disruption budgets, and for what the
// tallies that filter say of each node.
type candidates struct {
	seen    int // position in the log
	budgets int // position in Decider.budgets
	shifted int // how often the tallies that filter changed

	byNode   []cost
	unknown  []int32 // nodes to be computed; one may be listed twice
	cheapest []int32 // by block; none: it has no candidate
}

// cost is what the victims on a node cost. Its parts are compared in the order of compare; lower is
// better.
type cost struct {
	known      bool
	candidate  bool
	why        *refusal
	violations int32
	highest    int32
	victims    int32
	sum        int64
	start      int64 // of the longest-running of the most important victims, negated

	tallied *plugins.Rejection // what the tallies said of the node
	tied    bool               // and would say something else with some of its pods gone, perhaps
}

func (a *cost) compare(b *cost) int {
	for _, pair := range [...][2]int64{
		{int64(a.violations), int64(b.violations)}, {int64(a.highest), int64(b.highest)}, {a.sum, b.sum},
		{int64(a.victims), int64(b.victims)}, {a.start, b.start},
	} {
		if pair[0] != pair[1] {
			if pair[0] < pair[1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// Preempt finds the node whose pods cost least to remove for a pod that fits nowhere. Call it right
// after Decide has found no node. It changes nothing.
func (d *Decider) Preempt(p *cluster.Pod) Preemption {
	r, pl := d.cache.rankingFor(p)
	left := effort.NewBudget(d.limits, d.c)
	if pl.way != ranked {
		defer func() { d.meter.Work += d.limits.Effort - left.Left }()
		return preempt(d.c, d.profile, p, d.evaluate(p), left)
	}
	t := &trial{r: r, p: p, budgets: newBudgets(d.c, d.profile, p)}
	if len(pl.asked) > 0 {
		var ok bool
		if t.questions, ok = pl.questions(d.c, p); !ok {
			defer func() { d.meter.Work += d.limits.Effort - left.Left }()
			return preempt(d.c, d.profile, p, d.evaluate(p), left)
		}
		t.plain = prepare(d.c, d.profile, p)
		r.candidates = nil // what holds for other pods need not hold for this one
		defer func() { r.candidates = nil }()
	}
	var nominated *plugins.Rejection
	if n := d.c.Node(p.Nominated); n != nil {
		nominated = t.verdict(n)
	}
	if message := ineligible(d.c, p, nominated); message != "" {
		return Preemption{Message: message, Ineligible: true}
	}
	if own := d.c.Nominated(p.UID); own != nil {
		// The pod is a guest there to other pods of the class, but not to itself.
		if n := d.c.Node(own.Nominated); n != nil {
			r.candidates.forget(n)
			defer func() { r.candidates.forget(n) }()
		}
	}
	r.refreshCandidates(t, left)
	best := r.candidates.best(d.tie, d.preferredNode(p))
	if best == none && len(r.candidates.unknown) > 0 {
		return Preemption{Message: ErrTooLong.Error(), Err: ErrTooLong}
	}
	if best == none {
		reasons, names := r.hopeless()
		return Preemption{Message: noneAvailable(d.c.Len(), reasons), Plugins: names}
	}
	found, _ := t.on(d.c.Nodes[best])
	return Preemption{Node: found.node, Victims: found.victims, Violations: found.violations}
}

// best returns the cheapest node, or none; of several, the preferred one if it is among them, and
// otherwise a random one.
func (c *candidates) best(t *tie, preferred int32) int32 {
	best, ties := none, 0
	for _, node := range c.cheapest {
		if node == none {
			continue
		}
		order := -1
		if best != none {
			order = c.byNode[node].compare(&c.byNode[best])
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

	if best != none && preferred != none && int(preferred) < len(c.byNode) {
		if p := &c.byNode[preferred]; p.candidate && p.compare(&c.byNode[best]) == 0 {
			return preferred
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

// hopeless counts the reasons why preemption does not help, by node, and lists the plugins that
// give them.
func (r *ranking) hopeless() (reasons map[string]int, names []string) {
	reasons = map[string]int{}
	others := r.ix.c.Len()
	for i := range r.candidates.byNode {
		if why := r.candidates.byNode[i].why; why != nil {
			others--
			for _, reason := range why.rejection.Reasons {
				reasons[reason]++
			}
			names = why.named(names)
		}
	}
	if others > 0 {
		reasons["Preemption is not helpful for scheduling"] += others
	}
	return reasons, names
}

// refreshCandidates recomputes the nodes that changed since the last time, until the effort is used
// up. The others stay unknown, and are no candidates until they are computed.
func (r *ranking) refreshCandidates(t *trial, left *effort.Budget) {
	c, log := r.ix.c, &r.ix.c.Log
	known, budgets := r.candidates, &r.ix.budgets
	budgets.follow(r.ix)
	var concerned []int32
	follows := known != nil
	if follows {
		concerned, follows = budgets.since(known.budgets)
	}

	switch {
	case !follows:
		known, concerned = &candidates{shifted: r.shifted}, nil
		r.candidates = known
	case known.shifted != r.shifted:
		known.followTallies(r)
	}

	known.budgets = budgets.position()
	changes, ok := log.Since(known.seen)
	if !ok || len(known.byNode) < len(c.Nodes) {
		known.byNode, known.unknown = make([]cost, len(c.Nodes)), known.unknown[:0]
		known.cheapest = make([]int32, (len(c.Nodes)+63)/64)
		for i := range c.Nodes {
			known.unknown = append(known.unknown, int32(i))
		}
		changes = nil
	}

	for i := range changes {
		known.unknown = append(known.unknown, changes[i].Node)
	}
	known.unknown = append(known.unknown, concerned...)
	known.seen = log.Len()
	for _, node := range known.unknown {
		known.byNode[node] = cost{}
	}

	each, done := effort.CostOfPod(t.p)+len(r.tallies)/8, 0
	for _, node := range known.unknown {
		if left.IsSpent() {
			break
		}
		if !known.byNode[node].known {
			known.byNode[node] = t.cost(node)
			left.Spend(each * (costOfNode + t.judged))
			if r.ix.meter.Work++; t.judged > 0 {
				r.ix.meter.Work += each * (costOfNode + t.judged)
			}
		}
		done++
	}

	last := -1
	for _, node := range known.unknown {
		if block := int(node >> 6); block != last {
			known.compareBlock(block)
			last = block
		}
	}
	known.unknown = slices.Delete(known.unknown, 0, done)
}

// costOfNode is the effort of looking at a node before any pod is removed, in judgements.
const costOfNode = 10

// forget has a node recomputed. c may be nil.
func (c *candidates) forget(n *cluster.Node) {
	if c != nil && int(n.Index) < len(c.byNode) {
		c.unknown = append(c.unknown, n.Index)
	}
}

// followTallies has the nodes recomputed of which the tallies may say something else now.
func (c *candidates) followTallies(r *ranking) {
	c.shifted = r.shifted
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
			*a = answer{true, r.tallied(r.groupAt(int32(node)))}
		}
		if k.tied || k.tallied != a.Rejection {
			c.unknown = append(c.unknown, int32(node))
		}
	}
}

// tallied returns what the tallies say of a group, unless its nodes are rejected before they are
// asked.
func (r *ranking) tallied(group int32) *plugins.Rejection {
	g := r.groups[group]
	if len(r.tallies) == 0 || r.statics[g.key.static].early != nil {
		return nil
	}
	_, rejection := r.judgeTallies(r.standingOf(g))
	return rejection
}

// isTied reports whether pods that may leave the node, or are nominated to it, count in a tally
// that filters.
func (t *trial) isTied(n *cluster.Node) bool {
	return len(n.Nominated) > 0 || slices.ContainsFunc(n.Pods, func(o *cluster.Pod) bool {
		return o.Class.Priority < t.p.Class.Priority && slices.ContainsFunc(t.r.effectsOf(o.Class), func(e effect) bool {
			purpose := t.r.tallies[e.tally].purpose
			return purpose != spreadSoft && purpose != vote
		})
	})
}

// cost computes the cost of one node.
func (t *trial) cost(node int32) cost {
	n := t.r.ix.c.Nodes[node]
	t.judged = 0
	if n == nil {
		return cost{known: true}
	}
	c := t.costOf(n)
	if len(t.r.tallies) > 0 {
		c.tied, c.tallied = t.isTied(n), t.r.tallied(t.r.groupAt(node))
	}
	return c
}

func (t *trial) costOf(n *cluster.Node) cost {
	if rejection := t.verdict(n); rejection == nil || rejection.Unresolvable {
		return cost{known: true}
	}
	found, why := t.on(n)
	if why != nil {
		return cost{known: true, why: why}
	}
	return found.cost()
}
