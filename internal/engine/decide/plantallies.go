// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// planTallies adds the tallies to the plan: one for each spread constraint, and one for each
// purpose and topology key of the affinity terms.
func (pn *planner) planTallies(pl *plan) {
	own := pl.example.Class
	if i, lacking := pn.findLacking(pl.hard); lacking {
		pl.hard = pl.hard[i : i+1] // this constraint rejects all nodes, so other constraints are irrelevant
	}
	for i := range pl.hard {
		c := &pl.hard[i]
		pl.tallies = append(pl.tallies, tallyPlan{purpose: spreadHard, key: c.TopologyKey, constraint: c, self: c.Self(own)})
	}
	if _, lacking := pn.findLacking(pl.soft); pl.spreadWeight == 0 || pl.everyKey && lacking {
		pl.soft = nil // no node is scored
	}
	for i := range pl.soft {
		c := &pl.soft[i]
		pl.tallies = append(pl.tallies, tallyPlan{purpose: spreadSoft, key: c.TopologyKey, constraint: c,
			lackingCount: !pl.everyKey && !c.PerNode()})
	}

	if len(pl.hard)+len(pl.soft) > 0 {
		pl.inclusion = plugins.NewSpreadInclusion(pl.example)
	}
	pl.affinities = plugins.NewAffinities(pn.c, own)
	pl.attractsItself = pl.affinities.AttractsItself()
	if pl.filtersPods || pl.scoresPods {
		pl.others = pl.saidTo(pn.ix)
	}
	pl.foreignApart, pl.foreignSummed = false, false
	pn.planTerms(pl)
	if pl.combinations = pn.groupsFor(pl); len(pl.others.byAffinity) > 0 && pl.combinations > min(pn.limits.BaseGroups, pn.limits.RankingGroups) {
		pl.foreignApart = true
		pl.tallies = pl.tallies[:len(pl.hard)+len(pl.soft)]
		pn.planTerms(pl)
	}
}

// findLacking finds a constraint with a topology key absent from all nodes.
func (pn *planner) findLacking(constraints []plugins.SpreadConstraint) (i int, lacking bool) {
	i = slices.IndexFunc(constraints, func(c plugins.SpreadConstraint) bool { return !pn.ix.keys.hasKey(c.TopologyKey) })
	return i, i >= 0
}

// groupsFor estimates the number of node groups resulting from the tallies of a plan, up to a limit
// above which the exact number does not matter.
func (pn *planner) groupsFor(pl *plan) int {
	groups := 1
	for i := range pl.tallies {
		t := &pl.tallies[i]
		if pl.hasKey(t.key, i) {
			continue
		}
		if n := pn.ix.topologyFor(t.key, false).domainCount(); pn.ix.groupsByCount(n) {
			const counts = 4 // estimated number of distinct counts, since nodes are grouped by count
			groups *= counts
		} else {
			groups *= max(1, n)
		}
		if groups > max(pn.limits.BaseGroups, pn.limits.RankingGroups) {
			break
		}
	}
	return groups
}

// hasKey reports whether a tally with an index below first has the key.
func (pl *plan) hasKey(key string, first int) bool {
	return slices.ContainsFunc(pl.tallies[:first], func(t tallyPlan) bool { return t.key == key })
}

// countsVotes reports whether preferences are scored.
func (pl *plan) countsVotes() bool {
	return pl.scoresPods && !(pl.onlyOwnVotes && !pl.affinities.Prefers())
}

// planTerms adds the tallies of affinity terms to the plan.
func (pn *planner) planTerms(pl *plan) {
	own := pl.example.Class
	if pl.filtersPods {
		pl.tallies = append(pl.tallies, pn.attractingTallies(pl.affinities.Required())...)
		for i := range own.RequiredAntiAffinity {
			pn.addTally(pl, tallyPlan{purpose: repel, key: own.RequiredAntiAffinity[i].TopologyKey})
		}
		for i := range pl.others.byAffinity {
			effects := &pl.others.byAffinity[i]
			for _, key := range effects.repelled {
				pn.addTally(pl, tallyPlan{purpose: repelledBy, key: key, foreign: pl.isApart(effects.affinities)})
			}
		}
	}

	if pl.countsVotes() {
		for _, list := range [][]cluster.WeightedTerm{own.PreferredAffinity, own.PreferredAntiAffinity} {
			for i := range list {
				pn.addTally(pl, tallyPlan{purpose: vote, key: list[i].TopologyKey})
			}
		}
		for i := range pl.others.byAffinity {
			effects := &pl.others.byAffinity[i]
			for _, v := range effects.votes {
				pn.addTally(pl, tallyPlan{purpose: vote, key: v.Key, foreign: pl.isApart(effects.affinities)})
			}
		}
	}
}

// attractingTallies returns tallies for the keys of required affinity. A key absent from all nodes
// rejects all nodes, and makes the remaining keys irrelevant.
func (pn *planner) attractingTallies(keys []string) (all []tallyPlan) {
	for _, key := range keys {
		tally := tallyPlan{purpose: attract, key: key}
		if !pn.ix.keys.hasKey(key) {
			return []tallyPlan{tally}
		}
		all = append(all, tally)
	}
	return all
}

// isApart reports whether the terms of pods with the given affinities are foreign and have separate
// tallies.
func (pl *plan) isApart(affinities [2]uint64) bool {
	return pl.foreignApart && affinities != pl.example.Class.Affinities
}

// withForeignSummed returns a copy of the plan without the tallies of foreign terms.
func (pl *plan) withForeignSummed() *plan {
	summed := *pl
	summed.foreignSummed = true
	summed.tallies = slices.DeleteFunc(slices.Clone(pl.tallies), func(t tallyPlan) bool { return t.foreign })
	return &summed
}

// addTally adds a tally of terms if any node has its key, unless the plan already has the tally.
func (pn *planner) addTally(pl *plan, tally tallyPlan) {
	for i := range pl.tallies {
		if t := &pl.tallies[i]; t.purpose == tally.purpose && t.foreign == tally.foreign && t.key == tally.key {
			return
		}
	}
	if pn.ix.keys.hasKey(tally.key) {
		pl.tallies = append(pl.tallies, tally)
	}
}

// spreadTallies returns the number of tallies for spread constraints, which precede all others.
func (pl *plan) spreadTallies() int { return len(pl.hard) + len(pl.soft) }

// countsPodsOf sets counts to the spread tallies that count the pods of a node.
func (pl *plan) countsPodsOf(n *cluster.Node, counts tallySet) {
	clear(counts)
	hard, soft := plugins.HasKeys(n, pl.hard), !pl.everyKey || plugins.HasKeys(n, pl.soft)
	for k := range pl.spreadTallies() {
		t := &pl.tallies[k]
		if t.purpose == spreadSoft && t.constraint.PerNode() ||
			(t.purpose == spreadHard && hard || t.purpose == spreadSoft && soft) && pl.inclusion.Includes(t.constraint, n) {
			counts[k/8] |= 1 << (k % 8)
		}
	}
}

// tallySet is a set of tallies with one bit per tally.
type tallySet []uint8

func (s tallySet) has(tally int) bool { return s[tally/8]&(1<<(tally%8)) != 0 }

// sized returns a set for the given number of tallies, reusing the memory of s if sufficient.
func (s tallySet) sized(tallies int) tallySet {
	return slices.Grow(s[:0], (tallies+7)/8)[:(tallies+7)/8]
}

// marks holds a set of tallies per node.
type marks struct {
	bits []uint8
	each int // bytes per node
}

func newMarks(nodes, tallies int) marks {
	each := (tallies + 7) / 8
	return marks{make([]uint8, nodes*each), each}
}

func (m marks) tallies(node int32) tallySet { return m.bits[int(node)*m.each : int(node+1)*m.each] }

// effectsOf returns the effects of a placed pod of a class on the tallies.
func (pl *plan) effectsOf(class *cluster.PodClass) (effects []effect) {
	namespace := pl.example.Namespace()
	attracts := false
	if pl.filtersPods {
		attracts = pl.affinities.Attracts(class)
	}

	says, repels := pl.others.effectsOf(class.Affinities), pl.affinities.Repels(class)
	var own []plugins.Vote
	if pl.countsVotes() {
		own = pl.affinities.OwnVotes(class)
	}

	for k := range pl.tallies {
		t := &pl.tallies[k]
		var weight int64
		switch t.purpose {
		case spreadHard, spreadSoft:
			if t.constraint.Counts(class, namespace) {
				weight = 1
			}
		case attract:
			if attracts {
				weight = 1
			}
		case repel:
			weight = countOf(repels, t.key)
		case repelledBy:
			if t.foreign == pl.isApart(class.Affinities) && slices.Contains(says.repelled, t.key) {
				weight = 1
			}
		case vote:
			if !t.foreign {
				weight = votesFor(t.key, own)
			}
			if t.foreign == pl.isApart(class.Affinities) {
				weight += votesFor(t.key, says.votes)
			}
		}
		if weight != 0 {
			effects = append(effects, effect{tally: k, weight: weight})
		}
	}

	return effects
}

func countOf(keys []string, key string) (n int64) {
	for _, k := range keys {
		if k == key {
			n++
		}
	}
	return n
}

// votesFor adds up the votes for a topology key.
func votesFor(key string, votes []plugins.Vote) (sum int64) {
	for _, v := range votes {
		if v.Key == key {
			sum += v.Weight
		}
	}
	return sum
}

// effect is the weight of a placed pod of a class in a tally, or in one part of a merged tally.
type effect struct {
	tally, part int
	weight      int64
}

// saidTo returns the effects of all terms on the pending pod of a plan. It omits topology keys
// absent from all nodes.
func (pl *plan) saidTo(ix *index) (s termEffects) {
	own := pl.example.Class
	for _, users := range ix.terms.usersFor(own.Labels) {
		effects := ix.termEffects(users, own, pl.affinities)
		if !pl.filtersPods {
			effects.repelled = nil
		}
		if !pl.countsVotes() {
			effects.votes = nil
		}
		if len(effects.repelled)+len(effects.votes) > 0 {
			s.byAffinity = append(s.byAffinity, effects)
		}
	}
	slices.SortFunc(s.byAffinity, func(a, b affinityEffects) int { return slices.Compare(a.affinities[:], b.affinities[:]) })
	return s
}

// countedLooks lists, without duplicates, the looks of pods that may count in the tallies of a
// plan. If all is set, any look may count. The list is valid until the next call.
func (pl *plan) countedLooks(ix *index) (looks []*lookPods, all bool) {
	own := pl.ownSelectors()
	ix.nameKeys(own...)
	p := &ix.placed
	p.beginSearch()
	for _, selector := range own {
		labels, everybody := cluster.RequiredLabels(selector)
		if everybody {
			return nil, true
		}
		for _, at := range labels {
			p.findLooks(&p.byLabel, shortHashOf(at.Key, at.Value))
		}
	}

	if pl.filtersPods || pl.scoresPods {
		for _, users := range ix.terms.usersFor(pl.example.Class.Labels) {
			if pl.foreignSummed && pl.isApart(users.class.Affinities) {
				continue
			}
			p.findLooks(&p.byTerms, cluster.ShortHash(users.class.Affinities[0]))
		}
	}

	return p.found, false
}

// ownSelectors lists the selectors of the class for other pods.
func (pl *plan) ownSelectors() (list []*rules.Selector) {
	for i := range pl.hard {
		list = append(list, pl.hard[i].Selector)
	}
	for i := range pl.soft {
		list = append(list, pl.soft[i].Selector)
	}
	return append(list, termSelectors(pl.example.Class)...)
}
