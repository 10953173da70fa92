// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// sheet holds the data compared by a decision for a class: groups of nodes that differ only in
// room.
//
// It is the common part of rankings and surveys: given groups with their counts, it determines the
// rejected groups and, for the other groups, the scores except for room. It does not use buckets or
// trees.
type sheet struct {
	ix      *index
	scratch *sheetScratch
	plan    *plan
	statics []*static
	tallies []*tally
	groups  []*group
	// votesApart is set if a group's votes are only part of the votes for its nodes, so that its
	// fixed score excludes votes.
	votesApart bool
}

// sheetScratch is scratch space for comparing groups, valid until the next call that uses it.
type sheetScratch struct {
	seen   []bool       // by domain+1, because none is -1: whether markSeen has marked the domain
	counts domainCounts // result of countsOf; its shifts are zero
}

// choice is the node chosen for a pod by a ranking or a survey.
type choice struct {
	node     int32 // none: no node is feasible
	total    int64
	feasible int
}

// markFeasible marks the feasible groups and counts their nodes.
func (r *sheet) markFeasible() (nodes int) {
	r.ix.meter.Looked += len(r.groups) * (1 + len(r.tallies))
	for _, g := range r.groups {
		if g.ok == 0 {
			continue
		}
		_, rejection := r.judgeGroup(g)
		g.feasible = rejection == nil
		if g.feasible {
			nodes += int(g.ok)
		}
	}
	return nodes
}

// judgeGroup judges a group by the properties common to its nodes, which exclude room. It returns
// the first rejecting plugin in the order of the profile.
func (r *sheet) judgeGroup(g *group) (plugin string, rejection *plugins.Rejection) {
	s := r.statics[g.key.static]
	if s.early != nil {
		return s.early.plugin, s.early.rejection
	}
	if len(r.tallies) > 0 {
		plugin, rejection = r.judgeTallies(r.countsOf(g))
	}
	if s.late != nil && (rejection == nil || !r.plan.usualOrder && r.plan.stepOf(s.late.plugin) < r.plan.stepOf(plugin)) {
		return s.late.plugin, s.late.rejection
	}
	return plugin, rejection
}

// domainCounts holds, by tally, the counts for the domains of one node.
type domainCounts struct {
	count []int64 // count in the node's domain
	none  []bool  // the node is in no domain
	shift []int64 // count minus the count in the tally: the effect of pods assumed to be added or removed
}

// fitTallies grows the counts to the given number of tallies.
func (s *domainCounts) fitTallies(tallies int) {
	for len(s.count) < tallies {
		s.count, s.none, s.shift = append(s.count, 0), append(s.none, false), append(s.shift, 0)
	}
}

// countsOf returns the counts of the tallies in the domains of a group's nodes. The result is
// scratch space, valid until the next call.
func (r *sheet) countsOf(g *group) *domainCounts {
	s := &r.scratch.counts
	s.fitTallies(len(r.tallies))
	for k, t := range r.tallies {
		value := g.values[k]
		s.count[k], s.none[k] = t.countFor(value), value == noDomain && t.purpose != vote
	}
	return s
}

// judgeTallies judges a node by the pods in its domains.
func (r *sheet) judgeTallies(s *domainCounts) (plugin string, rejection *plugins.Rejection) {
	spread := r.judgeSpread(s)
	if spread != nil && (r.plan.usualOrder || r.plan.spreadStep < r.plan.affinityStep) {
		return r.plan.spreadPlugin, spread
	}
	if rejection := r.judgeAffinity(s); rejection != nil {
		return r.plan.affinityPlugin, rejection
	}
	if spread != nil {
		return r.plan.spreadPlugin, spread
	}
	return "", nil
}

// judgeSpread judges by the hard spread constraints. Their tallies precede all others, so the loop
// ends at the first other tally. Like upstream, a missing label is the reported reason even if a
// later constraint is exceeded.
func (r *sheet) judgeSpread(s *domainCounts) *plugins.Rejection {
	for k, t := range r.tallies {
		switch {
		case t.purpose != spreadHard:
			return nil // tallies of hard constraints precede all others
		case s.none[k]:
			return plugins.SpreadLabelMissing
		case !t.constraint.Allows(s.count[k], t.self, t.leastCount(s.count[k], s.shift[k])):
			return plugins.SpreadExceeded
		}
	}
	return nil
}

// judgeAffinity judges by required affinity and anti-affinity, of the pod and of placed pods. The
// reasons have upstream's order: unmet affinity, then the pod's anti-affinity, then the
// anti-affinity of placed pods. A pod that matches its own affinity may be placed without a
// matching pod, but only while no pod counts for any of its affinity terms.
func (r *sheet) judgeAffinity(s *domainCounts) *plugins.Rejection {
	var repelled, repelledByOthers, attracted bool
	for k, t := range r.tallies {
		attracted = attracted || t.purpose == attract && t.total+s.shift[k] > 0
	}

	for k, t := range r.tallies {
		switch t.purpose {
		case attract:
			if first := !attracted && r.plan.attractsItself; s.none[k] || !first && s.count[k] <= 0 {
				return plugins.AffinityUnmet
			}
		case repel:
			repelled = repelled || s.count[k] > 0
		case repelledBy:
			repelledByOthers = repelledByOthers || s.count[k] > 0
		}
	}

	switch {
	case repelled:
		return plugins.AntiAffinityViolated
	case repelledByOthers:
		return plugins.ExistingAntiAffinity
	}
	return nil
}

// bounds are the extremes of the raw scores of all feasible nodes, used for normalization.
type bounds struct {
	taint, affinity       int64 // highest values
	spreadLow, spreadHigh int64
	votesLow, votesHigh   int64
}

// findBounds finds the extremes of the raw scores over the feasible nodes only, like upstream's
// normalization: a node that becomes infeasible may change the scores of all other nodes.
func (r *sheet) findBounds() bounds {
	b := bounds{spreadLow: math.MaxInt64, votesLow: math.MaxInt64, votesHigh: math.MinInt64}
	for _, g := range r.groups {
		if g.ok == 0 || !g.feasible {
			continue
		}
		s := r.statics[g.key.static]
		b.taint, b.affinity = max(b.taint, s.taint), max(b.affinity, s.affinity)
		if s.scored {
			b.spreadLow, b.spreadHigh = min(b.spreadLow, g.spread), max(b.spreadHigh, g.spread)
		}
		g.votes = 0
		for k, t := range r.tallies {
			if t.purpose == vote {
				g.votes += t.countFor(g.values[k])
			}
		}
		b.votesLow, b.votesHigh = min(b.votesLow, g.votes), max(b.votesHigh, g.votes)
	}

	return b
}

// fixedScore returns a group's score except for room.
func (r *sheet) fixedScore(g *group, b *bounds) (sum int64) {
	s, pl := r.statics[g.key.static], r.plan
	if pl.taint.node != nil {
		sum += pl.taint.weight * plugins.Normalized(s.taint, b.taint, true)
	}
	if pl.affinity.node != nil {
		sum += pl.affinity.weight * plugins.Normalized(s.affinity, b.affinity, false)
	}
	sum += pl.image.weight * s.image
	if len(pl.soft) > 0 && s.scored {
		sum += pl.spreadWeight * plugins.SpreadNormalized(g.spread, b.spreadLow, b.spreadHigh)
	}
	if pl.scoresPods && !r.votesApart {
		sum += pl.voteWeight * plugins.AffinityNormalized(g.votes, b.votesLow, b.votesHigh)
	}
	return sum
}

// weighSpread computes the raw spread scores of the feasible groups from the weights of the
// constraints.
func (r *sheet) weighSpread(weights []float64) {
	if len(r.plan.soft) == 0 {
		return
	}
	for _, g := range r.groups {
		if g.ok == 0 || !g.feasible || !r.statics[g.key.static].scored {
			continue
		}
		var sum float64
		for k, t := range r.tallies {
			if t.purpose == spreadSoft && g.values[k] != noDomain {
				sum += t.constraint.Part(t.countFor(g.values[k]), weights[k])
			}
		}
		g.spread = plugins.SpreadScore(sum)
	}
}

// domainsScored counts the domains of the scored feasible nodes, for a tally that groups nodes by
// domain or has one domain per node. All nodes without the label count as one domain.
func (r *sheet) domainsScored(k int, t *tally) (n int) {
	clear(r.scratch.seen)
	for _, g := range r.groups {
		switch {
		case !r.isScored(g):
		case t.constraint.PerNode():
			n += int(g.ok)
		case g.values[k] == noDomain && r.scratch.markSeen(t.lacking), g.values[k] != noDomain && r.scratch.markSeen(int32(g.values[k])):
			n++
		}
	}
	return n
}

// isScored reports whether PodTopologySpread scores the nodes of the group.
func (r *sheet) isScored(g *group) bool {
	return g.ok > 0 && g.feasible && r.statics[g.key.static].scored
}

// markSeen marks a domain, possibly none, and reports whether it was unmarked.
func (d *sheetScratch) markSeen(domain int32) bool {
	at := int(domain) + 1
	for at >= len(d.seen) {
		d.seen = append(d.seen, false)
	}
	before := d.seen[at]
	d.seen[at] = true
	return !before
}

// inKey is the number of tallies in a groupKey. With more tallies, the key is a string, whose
// lookup costs more.
const inKey = 8

type groupKey struct {
	static int32
	values [inKey]int64
}

// group is a group of nodes with the same key.
type group struct {
	key      groupKey
	long     string    // complete key if it is too long for a groupKey; key then only holds the static
	values   []int64   // by tally
	ok       int32     // number of nodes in buckets
	rejected []int32   // number of nodes by reason
	buckets  [][]int32 // by score
	inUse    []uint64  // bit set of nonempty buckets

	// The following fields are valid only for the current decision.
	feasible bool
	spread   int64
	votes    int64
}

// bulkBytes estimates the memory per byte of a class's bulk, for the most expensive case: long
// lists of short values.
const bulkBytes = 8
