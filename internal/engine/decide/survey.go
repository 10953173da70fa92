// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// survey decides a pod from a base. It counts the pods matched by the selectors of the class for
// this decision only. Nodes set apart from their group by these counts are judged individually, and
// all other nodes are judged by group. The best node is found by searching the trees. The cost
// therefore depends on the number of selected pods, not on the number of nodes, and no counts are
// kept.
//
// A class with expensive surveys and a steady arrival of pods gets a ranking instead.
//
// One survey is reused by all decisions. beginDecision and endDecision bracket each decision. Only
// between these calls does the survey refer to the base, the plan and the pod, so it never retains
// a dropped base or a pod.
type survey struct {
	sheet
	b    *base
	pod  *cluster.Pod
	tie  *tie
	own  sheetScratch
	work int // estimated number of examined nodes

	// The groups of the sheet are the base's groups, followed by one for each node set apart.
	apart  []loneNode
	isLone []int32 // by node: index in the list apart, plus 1
	lone   []int32 // by group: number of nodes set apart

	axisOf          []int        // by tally: index in the base's axes
	keys            []*topology  // topologies of the hard constraints
	spare           []*tally     // by tally: reused by every decision
	touched         [][]int32    // by tally: domains with nonzero counts
	stock           []*group     // reused by every decision
	counts          tallySet     // spread tallies that count the pods of one node
	weights         []float64    // of the soft constraints, by tally
	nominatedCounts domainCounts // counts of one node, including the pods nominated to it
	fixed           []int64      // by group of the base: score except for room

	search
}

// loneNode is a node set apart from its group.
type loneNode struct {
	node   int32
	bucket int16
}

// beginDecision prepares a decision.
func (s *survey) beginDecision(b *base, plan *plan, axisOf []int, p *cluster.Pod, t *tie) {
	b.looked = 0
	b.catchUp()
	b.used = b.ix.meter.Clock
	if b.effort != nil {
		b.effort.used = b.ix.meter.Clock // retains the effort, because other classes with the same terms find the base by it
	}

	b.served++
	s.pod, s.tie, s.ix, s.scratch = p, t, b.ix, &s.own
	s.plan, s.b, s.statics, s.axisOf, s.work = plan, b, b.statics, axisOf, 0
	s.votesApart = b.votes != nil
	for len(s.isLone) < len(b.at) {
		s.isLone = append(s.isLone, 0)
	}
	s.tallies, s.keys = s.tallies[:0], s.keys[:0]
	for i := range s.plan.hard {
		s.keys = append(s.keys, b.axes[s.axisOf[i]].topology)
	}
	for i := range s.plan.tallies {
		s.tallies = append(s.tallies, s.startTally(i))
	}
}

// startTally returns an empty tally of the plan.
func (s *survey) startTally(i int) *tally {
	of := &s.plan.tallies[i]
	axis := &s.b.axes[s.axisOf[i]]
	for len(s.spare) <= i {
		s.spare, s.touched = append(s.spare, &tally{}), append(s.touched, nil)
	}

	t := s.spare[i]
	t.purpose, t.topology, t.constraint, t.self, t.byCount = of.purpose, axis.topology, of.constraint, of.self, axis.byCount
	t.lacking = of.domainOfLacking(axis.topology)
	t.total, t.included, t.levels, t.lowest, t.present = 0, nil, t.levels[:0], 0, 0
	for len(t.count) < axis.domainCount() {
		t.count = append(t.count, 0)
	}

	if t.purpose == spreadHard {
		set := s.b.inclusionFor(s.plan, of, axis.topology, s.keys)
		t.included, t.present = set.included, set.present
		t.addToLevel(0, int32(t.present))
	}
	return t
}

// endDecision resets the counts, and drops the references to the base, the plan and the pod.
func (s *survey) endDecision() {
	for k, t := range s.tallies {
		for _, domain := range s.touched[k] {
			t.count[domain] = 0
		}
		s.touched[k], t.included, t.constraint = s.touched[k][:0], nil, nil
	}
	for i := range s.apart {
		s.isLone[s.apart[i].node] = 0
	}
	s.apart = s.apart[:0]
	s.plan, s.b, s.pod, s.statics, s.axisOf = nil, nil, nil, nil, nil
}

// countPods counts the pods relevant to the class. It returns false if counting would scan all
// pods. judged is the only node to be judged, or none if any node may be judged. With a single
// judged node, pods that merely repel the class from their own node are counted on the judged node
// only.
func (s *survey) countPods(judged int32) bool {
	if len(s.tallies) == 0 {
		return true
	}
	s.counts = s.counts.sized(s.plan.spreadTallies())
	looks, all := s.plan.countedLooks(s.ix)
	if all {
		return false
	}

	for _, pods := range looks {
		effects := s.plan.effectsOf(pods.class)
		if len(effects) == 0 {
			continue
		}
		if judged != none && s.repelsAlone(effects, judged) {
			s.work++
			s.countNode(effects, judged, pods.nodes.countOn(judged))
			continue
		}
		s.work += pods.nodes.len()
		for node, n := range pods.nodes.all {
			s.countNode(effects, node, n)
		}
	}

	return true
}

// countNode counts the pods of one class on a node.
func (s *survey) countNode(effects []effect, node int32, n podCount) {
	asked := false
	for _, e := range effects {
		t, many := s.tallies[e.tally], int64(n.staying)
		if t.purpose > spreadSoft {
			many += int64(n.leaving)
		} else {
			if !asked {
				asked = true
				s.plan.countsPodsOf(s.ix.c.Nodes[node], s.counts)
			}
			if !s.counts.has(e.tally) {
				continue
			}
		}

		if domain := t.countsIn(node); domain != none && many != 0 {
			if t.count[domain] == 0 {
				s.touched[e.tally] = append(s.touched[e.tally], domain)
			}
			t.addPods(domain, many*e.weight)
		}
	}
}

// repelsAlone reports whether the only effect of the pods is to repel the class from their domain,
// and the node is the only node of its domain.
func (s *survey) repelsAlone(effects []effect, node int32) bool {
	for _, e := range effects {
		t := s.tallies[e.tally]
		if t.purpose != repel && t.purpose != repelledBy || !t.topology.isAlone(node) {
			return false
		}
	}
	return true
}

// forgetCounts resets all counts.
func (s *survey) forgetCounts() {
	for k, t := range s.tallies {
		for _, domain := range s.touched[k] {
			t.count[domain] = 0
		}
		s.touched[k] = s.touched[k][:0]
		s.tallies[k] = s.startTally(k)
	}
}

// search finds the best nodes in the trees of a survey's base, starting with the most promising
// groups.
type search struct {
	votesLow, votesHigh int64 // extremes over the feasible nodes, if the base sums votes

	best   int64 // the highest total so far
	pool   []part
	ranked []rankedGroup
}

// part is a node with the best total so far, or a cell with nodes that have or may have this total.
type part struct {
	group       int32 // group of the cell; none: the part is a single node
	cell, count int32
	node        int32
}

// rankedGroup is a group of the base that may contain the best node, with its fixed score and the
// bounds of scoreOf for its nodes.
type rankedGroup struct {
	group     int32
	fixed     int64
	low, high int64
}

// startSearch begins a search.
func (s *search) startSearch() { s.best, s.pool, s.ranked = math.MinInt64, s.pool[:0], s.ranked[:0] }

// offerPart adds to the pool a node with the given total, or a cell containing such nodes, unless
// the pool has better parts. It drops worse parts from the pool.
func (s *search) offerPart(total int64, p part) {
	if total > s.best {
		s.best, s.pool = total, s.pool[:0]
	}
	if total == s.best {
		s.pool = append(s.pool, p)
	}
}
