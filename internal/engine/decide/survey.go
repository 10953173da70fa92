package decide

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// survey decides a pod from a base. The pods that the selectors of its class match are counted for
// this decision only: the nodes that these counts set apart from their group are judged one by
// one, all others by group, and the best is searched for in the trees. So the cost depends on the
// number of pods that the class selects, not on the number of nodes, and nothing is kept.
//
// A class for which this costs much, and whose pods keep coming, gets a ranking.
//
// One survey is reused by all decisions. beginDecision and endDecision bracket one of them: in
// between it refers to the base, the plan and the pod; afterwards to none of them, so that it
// keeps no dropped base and no pod alive.
type survey struct {
	sheet
	b    *base
	pod  *cluster.Pod
	tie  *tie
	own  sheetScratch
	work int // about how many nodes were looked at

	// The groups of the sheet are those of the base, followed by one for each node that stands
	// apart.
	apart  []loneNode
	isLone []int32 // by node: its number in apart, from 1
	lone   []int32 // by group: how many of its nodes stand apart

	axisOf  []int        // by tally
	keys    []*topology  // of the hard constraints
	spare   []*tally     // by tally: reused by every decision
	touched [][]int32    // by tally: domains that count something
	stock   []*group     // reused by every decision
	counts  tallySet     // the spread tallies that count the pods of one node
	weights []float64    // of the soft constraints, by tally
	with    domainCounts // of one node, with the pods nominated to it
	fixed   []int64      // by group of the base: its score but for room

	search
}

// loneNode is a node that stands apart from its group.
type loneNode struct {
	node   int32
	bucket int16
}

// beginDecision prepares a decision.
func (s *survey) beginDecision(b *base, plan *plan, axisOf []int, p *cluster.Pod, t *tie) {
	b.looked = 0
	b.catchUp()
	b.used = b.ix.meter.Clock
	if b.said != nil {
		b.said.used = b.ix.meter.Clock // other classes of which the same is said are to find the base
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

// startTally returns a tally of the plan that has counted nothing yet.
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

// endDecision prepares for the next decision.
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

// countPods counts the pods that matter to the class. It returns false if that would take a look at
// every pod.
func (s *survey) countPods() bool {
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
		s.work += pods.nodes.len()
		for node, n := range pods.nodes.all {
			s.plan.countsPodsOf(s.ix.c.Nodes[node], s.counts)
			for _, e := range effects {
				t, many := s.tallies[e.tally], int64(n.staying)
				if t.purpose > spreadSoft {
					many += int64(n.leaving)
				} else if !s.counts.has(e.tally) {
					continue
				}
				if domain := t.countsIn(node); domain != none && many != 0 {
					if t.count[domain] == 0 {
						s.touched[e.tally] = append(s.touched[e.tally], domain)
					}
					t.addPods(domain, many*e.weight)
				}
			}
		}
	}

	return true
}

// setApart finds the nodes that stand apart: those whose domain has counted something, where nodes
// are grouped by count; those that pods are nominated to; and those that are in no tree.
func (s *survey) setApart() {
	for k, t := range s.tallies {
		if !t.byCount {
			continue
		}
		for _, domain := range s.touched[k] {
			if t.value(domain) != 0 {
				t.topology.eachNode(domain, s.putApart)
			}
		}
	}

	for _, node := range s.b.odd {
		s.putApart(node)
	}
	for node := range s.ix.guests {
		s.putApart(node)
	}

	s.sortApart()
	for i := range s.apart {
		s.isLone[s.apart[i].node] = int32(i) + 1
	}
}

// sortApart sorts them by node. Many are found again in their order.
func (s *survey) sortApart() {
	const many = 16
	if len(s.apart) < len(s.isLone)/many {
		slices.SortFunc(s.apart, func(a, b loneNode) int { return cmp.Compare(a.node, b.node) })
		return
	}
	s.apart = s.apart[:0]
	for node, mark := range s.isLone {
		if mark != 0 {
			s.apart = append(s.apart, loneNode{node: int32(node)})
		}
	}
}

func (s *survey) putApart(node int32) {
	if s.b.at[node] != none && s.isLone[node] == 0 {
		s.isLone[node] = 1
		s.apart = append(s.apart, loneNode{node: node})
	}
}

// newGroup adds an empty group to the sheet.
func (s *survey) newGroup(static int32) *group {
	i := len(s.groups)
	if i == len(s.stock) {
		s.stock = append(s.stock, &group{})
	}
	g := s.stock[i]
	g.key.static, g.values, g.ok, g.feasible = static, g.values[:0], 0, false
	s.groups = s.stock[:i+1]
	return g
}

// buildGroups fills the sheet with the groups, and counts their nodes that have room.
func (s *survey) buildGroups() {
	s.groups, s.lone = s.stock[:0], s.lone[:0]
	for _, of := range s.b.groups {
		g := s.newGroup(of.static)
		for k, t := range s.tallies {
			value := int64(of.values[s.axisOf[k]])
			if t.byCount && t.purpose == vote {
				value = 0
			}
			g.values = append(g.values, value)
		}
		if !of.repelled {
			g.ok = of.tree.countFitting(s.b, of.tree.root, s.plan.room)
		}
		s.lone = append(s.lone, 0)
	}

	for i := range s.apart {
		of := &s.apart[i]
		at := s.b.at[of.node]
		g := s.newGroup(s.b.groups[at].static)
		for _, t := range s.tallies {
			g.values = append(g.values, t.value(t.topology.domain[of.node]))
		}
		of.bucket = s.b.scoreRoom(of.node, s.plan.room)
		if of.bucket >= 0 && !s.b.groups[at].repelled {
			g.ok = 1
		}
		if hadRoom := g.ok; hasBothResources(s.b.roomOf(of.node)) {
			s.lone[at]++
			s.groups[at].ok -= hadRoom
		}
		if g.ok == 1 && s.lacksNominatedRoom(of.node) {
			g.ok = 0
		}
	}

	s.work += len(s.b.groups) + 4*len(s.apart)
}

// lacksNominatedRoom reports whether a node cannot take the pod together with the pods nominated
// to it, as if these had arrived.
func (s *survey) lacksNominatedRoom(node int32) bool {
	n := s.ix.c.Nodes[node]
	if len(n.Nominated) == 0 {
		return false
	}

	guests := nominatedBefore(n, s.pod)
	if len(guests) == 0 {
		return false
	}

	room := *s.b.roomOf(node)
	for _, g := range guests {
		room.RequestedCPU = rules.Sum(room.RequestedCPU, g.Class.Requests.MilliCPU)
		room.RequestedMemory = rules.Sum(room.RequestedMemory, g.Class.Requests.Memory)
		room.Pods++
	}

	if !s.plan.room.fits(&room) {
		return true
	}
	if s.plan.strangersSummed && slices.ContainsFunc(guests, func(g *cluster.Pod) bool {
		return slices.ContainsFunc(s.plan.others.of(g.Class.Affinities).repelled, n.Has)
	}) {
		return true
	}
	if len(s.tallies) == 0 {
		return false
	}

	with := &s.with
	with.fitTallies(len(s.tallies))
	for k, t := range s.tallies {
		domain := t.topology.domain[node]
		with.none[k], with.count[k], with.shift[k] = domain == none, 0, 0
		if domain != none {
			with.count[k] = t.count[domain]
		}
	}

	s.plan.countsPodsOf(n, s.counts)
	for _, g := range guests {
		for _, e := range s.plan.effectsOf(g.Class) {
			if with.none[e.tally] || s.tallies[e.tally].purpose <= spreadSoft && (g.Terminating || !s.counts.has(e.tally)) {
				continue
			}
			with.count[e.tally] += e.weight
			with.shift[e.tally] += e.weight
		}
	}

	_, rejection := s.judgeTallies(with)
	return rejection != nil
}

// chooseNode finds the best node. Groups are judged and scored as a ranking's are; what is left,
// the score for room, is bounded cell by cell, so that most of a tree is never looked at. As
// upstream, nothing is scored if only one node is feasible.
func (s *survey) chooseNode() choice {
	s.buildGroups()
	feasible := s.markFeasible()
	if feasible == 0 {
		return choice{node: none}
	}

	s.weights = append(s.weights[:0], make([]float64, len(s.tallies))...)
	for k, t := range s.tallies {
		if t.purpose == spreadSoft {
			s.weights[k] = t.constraint.Weight(s.domainsScored(k, t))
		}
	}

	s.weighSpread(s.weights)
	bounds := s.findBounds()
	if s.votesApart {
		s.boundVotes()
	}

	s.search.startSearch()
	s.fixed = append(s.fixed[:0], make([]int64, len(s.b.groups))...)
	for i, g := range s.groups {
		if g.ok == 0 || !g.feasible {
			continue
		}
		fixed := s.fixedScore(g, &bounds)
		if n := len(s.b.groups); i >= n {
			of := &s.apart[i-n]
			if s.votesApart {
				fixed += s.voteScore(g.votes + s.b.votesOf(of.node))
			}
			s.offerPart(fixed+int64(of.bucket), part{group: none, count: 1, node: of.node})
			continue
		}
		s.fixed[i] = fixed
		low, high := s.boundCell(int32(i), s.b.groups[i].tree.root)
		s.ranked = append(s.ranked, rankedGroup{int32(i), fixed, low, high})
	}

	node, total := s.findBest()
	if feasible == 1 {
		total = 0
	}
	return choice{node, total, feasible}
}
