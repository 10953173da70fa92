package decide

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// candidates remembers, for the pods of one class, what making room on each node would cost. Most
// nodes stay as they are from one preemption to the next; only those that changed are worked out
// anew. Of every block of 64 nodes the cheapest is kept, so that finding the cheapest of all
// compares blocks.
type candidates struct {
	seen    int    // of the log
	budgets uint64 // version of the disruption budgets
	shifted int    // how often the tallies that filter changed

	byNode   []cost
	unknown  []int32 // nodes to be worked out; may name one twice
	cheapest []int32 // by block; none: it has no candidate
}

// cost is what victims cost, in the order in which it is compared. The lower the better.
type cost struct {
	known      bool
	candidate  bool
	why        *refusal
	violations int32
	highest    int32
	victims    int32
	sum        int64
	start      int64 // of the longest-running of the most important victims, negated
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

// Preempt finds the node whose pods cost least to remove for a pod that fits nowhere. It is to be
// called right after Decide found none, and changes nothing.
func (d *Decider) Preempt(p *cluster.Pod) Preemption {
	r, pl := d.rankingFor(p)
	if pl.way != ranked {
		return Preempt(d.c, d.profile, p, d.Evaluate(p))
	}
	t := &trial{r: r, p: p, budgets: newBudgets(d.c, d.profile, p)}
	if len(pl.asked) > 0 {
		var ok bool
		if t.questions, ok = d.questions(p, pl); !ok {
			return Preempt(d.c, d.profile, p, d.Evaluate(p))
		}
		t.plain = prepare(d.c, d.profile, p)
		r.candidates = nil // what was found out for other pods need not hold for this one
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
		// To others of the class the pod itself is a guest there, to itself it is not.
		if n := d.c.Node(own.Nominated); n != nil {
			r.candidates.forget(n)
			defer func() { r.candidates.forget(n) }()
		}
	}
	r.refreshCandidates(t)
	best := r.candidates.best(d.rng)
	if best == none {
		reasons, names := r.hopeless()
		return Preemption{Message: noneAvailable(d.c.Len(), reasons), Plugins: names}
	}
	found, _ := t.on(d.c.Nodes[best])
	return Preemption{Node: found.node, Victims: found.victims, Violations: found.violations}
}

// best returns the cheapest node, one of them if several are, or none.
func (c *candidates) best(rng *rand.Rand) int32 {
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
			if ties++; rng.IntN(ties) == 0 {
				best = node
			}
		}
	}
	return best
}

// compareBlock finds the cheapest of the block that a node is in.
func (c *candidates) compareBlock(block int) {
	best := none
	for i := block << 6; i < min(block<<6+64, len(c.byNode)); i++ {
		if c.byNode[i].candidate && (best == none || c.byNode[i].compare(&c.byNode[best]) < 0) {
			best = int32(i)
		}
	}
	c.cheapest[block] = best
}

// hopeless counts why preemption does not help, by node, and names the plugins that say so.
func (r *ranking) hopeless() (reasons map[string]int, names []string) {
	reasons = map[string]int{}
	others := r.d.c.Len()
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

// refreshCandidates works out the nodes that changed since last time.
func (r *ranking) refreshCandidates(t *trial) {
	c, log := r.d.c, &r.d.c.Log
	known := r.candidates
	if known == nil || known.budgets != c.Budgets.Version || known.shifted != r.shifted {
		known = &candidates{budgets: c.Budgets.Version, shifted: r.shifted}
		r.candidates = known
	}
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
	known.seen = log.Len()
	for _, node := range known.unknown {
		known.byNode[node].known = false
	}
	for _, node := range known.unknown {
		if !known.byNode[node].known {
			known.byNode[node] = t.cost(node)
		}
	}
	last := -1
	for _, node := range known.unknown {
		if block := int(node >> 6); block != last {
			known.compareBlock(block)
			last = block
		}
	}
	known.unknown = known.unknown[:0]
}

func (c *candidates) forget(n *cluster.Node) {
	if c != nil && int(n.Index) < len(c.byNode) {
		c.unknown = append(c.unknown, n.Index)
	}
}

// cost works out one node.
func (t *trial) cost(node int32) cost {
	n := t.r.d.c.Nodes[node]
	if n == nil {
		return cost{known: true}
	}
	if rejection := t.verdict(n); rejection == nil || rejection.Unresolvable {
		return cost{known: true}
	}
	found, why := t.on(n)
	if why != nil {
		return cost{known: true, why: why}
	}
	return found.cost()
}

// verdict judges one node with nothing thought away.
func (t *trial) verdict(n *cluster.Node) *plugins.Rejection {
	r := t.r
	if t.plain != nil {
		_, rejection := t.plain.nodeWithNominated(n)
		return rejection
	}
	if len(n.Nominated) > 0 { // the bucket knows of them all, be it of the pod itself
		t.begin(n)
		_, rejection := t.rejection()
		return rejection
	}
	plugin, rejection := r.judgeGroup(r.groups[r.groupAt(n.Index)])
	if bucket := r.bucket[n.Index]; bucket < 0 {
		if own := &r.reasons[reasonIn(bucket)]; !r.precedes(plugin, own) {
			return own.rejection
		}
	}
	return rejection
}

// precedes tells whether a plugin that rejects a group of nodes is asked before the one that
// rejects some of them for what is on them.
func (r *ranking) precedes(plugin string, own *reason) bool {
	return plugin != "" && !r.plan.usualOrder && r.plan.stepOf(plugin) < r.plan.stepOf(own.plugin)
}

// trial is one node with some of its pods thought away.
type trial struct {
	r       *ranking
	p       *cluster.Pod
	budgets *budgets

	// What the asked filters say; nil where there are none. plain is all filters, prepared for the
	// cluster as it is.
	questions questions
	plain     *judges

	node     *cluster.Node // a copy
	standing standing
	static   *static
	guests   []*cluster.Pod // pods nominated to the node that p must leave room for
}

// on finds the pods that would have to leave a node for the waiting one, as few and as unimportant
// as possible.
func (t *trial) on(n *cluster.Node) (*candidate, *refusal) {
	lower := lowerThan(t.p, n)
	if len(lower) == 0 {
		return nil, &refusal{rejection: noVictims}
	}
	t.begin(n)
	slices.SortStableFunc(lower, byImportance)
	violating, others := t.budgets.split(lower)
	for _, o := range lower {
		t.remove(o)
	}
	if plugin, rejection := t.rejection(); rejection != nil {
		return nil, &refusal{plugin, rejection}
	}
	found := &candidate{node: n}
	for i, o := range slices.Concat(violating, others) {
		t.add(o)
		if _, rejection := t.rejection(); rejection == nil {
			continue
		}
		t.remove(o)
		found.victims = append(found.victims, o)
		if i < len(violating) {
			found.violations++
		}
	}
	if len(found.victims) == 0 {
		return nil, &refusal{rejection: needless(n)}
	}
	if t.budgets.keep && found.violations > 0 {
		return nil, &refusal{rejection: budgetKept}
	}
	slices.SortStableFunc(found.victims, byImportance)
	return found, nil
}

func (t *trial) begin(n *cluster.Node) {
	r := t.r
	t.node = n.Copy(t.node)
	t.static = r.statics[r.groups[r.groupAt(n.Index)].key.static]
	t.guests = nominatedBefore(n, t.p)
	t.standing.fit(len(r.tallies))
	for k, tally := range r.tallies {
		domain := tally.topology.domain[n.Index]
		t.standing.none[k], t.standing.count[k], t.standing.shift[k] = domain == none, 0, 0
		if domain != none {
			t.standing.count[k] = tally.count[domain]
		}
	}
}

func (t *trial) add(o *cluster.Pod)    { t.node.Add(o); t.count(o, 1) }
func (t *trial) remove(o *cluster.Pod) { t.node.Take(o); t.count(o, -1) }

func (t *trial) count(o *cluster.Pod, sign int64) {
	if len(t.r.tallies) == 0 {
		return
	}
	for _, e := range t.r.effectsOf(o.Class) {
		if t.standing.none[e.tally] {
			continue
		}
		spreads := t.r.tallies[e.tally].purpose <= spreadSoft
		if spreads && (o.Terminating || t.r.counts[t.node.Index]&(1<<e.tally) == 0) {
			continue
		}
		t.standing.count[e.tally] += sign * e.weight
		t.standing.shift[e.tally] += sign * e.weight
	}
}

// rejection judges the node as it is thought to be, with the pods nominated to it and without them:
// the first plugin that rejects it, and why.
func (t *trial) rejection() (plugin string, rejection *plugins.Rejection) {
	if len(t.guests) > 0 {
		for _, g := range t.guests {
			t.add(g)
		}
		plugin, rejection = t.judge()
		for _, g := range t.guests {
			t.remove(g)
		}
		if rejection != nil {
			return plugin, rejection
		}
	}
	return t.judge()
}

func (t *trial) judge() (plugin string, rejection *plugins.Rejection) {
	if t.questions != nil || !t.r.plan.usualOrder {
		return t.judgeInOrder()
	}
	if early := t.static.early; early != nil {
		return early.plugin, early.rejection
	}
	for _, f := range t.r.plan.contents {
		if rejection := f.judge(t.node); rejection != nil {
			return f.name, rejection
		}
	}
	if len(t.r.tallies) > 0 {
		if plugin, rejection := t.r.judgeTallies(&t.standing); rejection != nil {
			return plugin, rejection
		}
	}
	if late := t.static.late; late != nil {
		return late.plugin, late.rejection
	}
	return "", nil
}

// judgeInOrder is the same where filters stand in another order than the usual one, or some are
// asked, which may stand anywhere between the others.
func (t *trial) judgeInOrder() (plugin string, rejection *plugins.Rejection) {
	for i := range t.r.plan.steps {
		step := &t.r.plan.steps[i]
		plugin = step.name
		switch {
		case step.asked != none:
			if judge := t.questions[step.asked]; judge != nil {
				rejection = judge(t.node)
			}
		case step.judge != nil:
			rejection = step.judge(t.node)
		case plugin == spreadPlugin:
			rejection = t.r.judgeSpread(&t.standing)
		case plugin == affinityPlugin:
			rejection = t.r.judgeAffinity(&t.standing)
		}
		if rejection != nil {
			return plugin, rejection
		}
	}
	return "", nil
}

// startNegated makes later starts the lower cost.
func startNegated(start int64) int64 {
	if start == math.MaxInt64 {
		return math.MinInt64
	}
	return -start
}
