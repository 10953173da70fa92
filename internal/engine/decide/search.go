// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"math"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// chooseNode finds the best node. Groups are judged and scored as in a ranking. The scores for room
// are bounded cell by cell, so that most cells of a tree are never visited. Like upstream, it
// leaves the total at 0 if only one node is feasible.
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
			lone := &s.apart[i-n]
			if s.votesApart {
				fixed += s.voteScore(g.votes + s.b.votesOf(lone.node))
			}
			s.offerPart(fixed+int64(lone.bucket), part{group: none, count: 1, node: lone.node})
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

// takesPod judges a single node in the same way as a node set apart. The pods must have been
// counted.
func (s *survey) takesPod(node int32) bool {
	at := s.b.at[node]
	if at == none || s.b.groups[at].repelled || s.b.scoreRoom(node, s.plan.room) < 0 || s.lacksNominatedRoom(node) {
		return false
	}

	s.groups = s.stock[:0]
	g := s.newGroup(s.b.groups[at].static)
	for _, t := range s.tallies {
		g.values = append(g.values, t.value(t.topology.domain[node]))
	}
	_, rejection := s.judgeGroup(g)
	return rejection == nil
}

// findBest searches the trees. The caller must have offered the nodes set apart to the pool.
func (s *survey) findBest() (node int32, total int64) {
	slices.SortStableFunc(s.ranked, func(a, b rankedGroup) int { return cmp.Compare(b.fixed+b.high, a.fixed+a.high) })
	for i := range s.ranked {
		g := &s.ranked[i]
		if g.fixed+g.high < s.best {
			break
		}
		s.visitCell(g, s.b.groups[g.group].tree.root, g.low, g.high)
	}
	if s.findsPreferred() {
		return s.tie.preferred, s.best
	}
	return s.drawNode(), s.best
}

// findsPreferred reports whether the preferred node is among the best.
func (s *survey) findsPreferred() bool {
	node := s.tie.preferred
	if node == none || int(node) >= len(s.b.at) {
		return false
	}
	group := s.b.at[node]
	return slices.ContainsFunc(s.pool, func(p part) bool { return p.group == none && p.node == node }) ||
		slices.ContainsFunc(s.ranked, func(g rankedGroup) bool { return g.group == group }) && s.isBest(group, node)
}

// visitCell searches a cell with scores between low and high, unless no node in it can match the
// best total so far. If it can match but not exceed the best, the whole cell is added to the pool.
func (s *survey) visitCell(g *rankedGroup, i int32, low, high int64) {
	t := s.b.groups[g.group].tree
	c := &t.cells[i]
	s.work++
	whole := part{group: g.group, cell: i, count: c.count}
	switch {
	case high < 0 || g.fixed+high < s.best:
	case g.fixed+high == s.best || low == high && c.count > s.lone[g.group]:
		s.offerPart(g.fixed+high, whole)
	case c.left == none:
		s.work += len(c.nodes)
		for _, node := range c.nodes {
			if s.isLone[node] != 0 {
				continue
			}
			score := s.scoreOf(g.group, node)
			if score < 0 {
				continue
			}
			s.offerPart(g.fixed+score, part{group: none, count: 1, node: node})
			if score == high { // no other node of the cell can be better, but others may be equal
				s.pool = append(s.pool[:len(s.pool)-1], whole)
				return
			}
		}

	default:
		left, right := c.left, c.right
		leftLow, leftHigh := s.boundCell(g.group, left)
		rightLow, rightHigh := s.boundCell(g.group, right)
		if leftHigh < rightHigh {
			left, leftLow, leftHigh, right, rightLow, rightHigh = right, rightLow, rightHigh, left, leftLow, leftHigh
		}
		s.visitCell(g, left, leftLow, leftHigh)
		s.visitCell(g, right, rightLow, rightHigh)
	}
}

// scoreOf returns the part of a node's score that varies within its group, or noRoom if the node
// lacks room.
func (s *survey) scoreOf(group, node int32) int64 {
	score := int64(s.b.scoreRoom(node, s.plan.room))
	if score < 0 || !s.votesApart {
		return score
	}
	return score + s.voteScore(s.groups[group].votes+s.b.votesOf(node))
}

func (s *survey) voteScore(votes int64) int64 {
	return s.plan.voteWeight * plugins.AffinityNormalized(votes, s.votesLow, s.votesHigh)
}

// boundCell returns bounds of scoreOf for the nodes in a cell of a group's tree.
func (s *survey) boundCell(group, i int32) (low, high int64) {
	t := s.b.groups[group].tree
	low, high = t.boundRoom(s, i)
	if high < 0 || !s.votesApart {
		return low, high
	}
	own, c := s.groups[group].votes, &t.cells[i]
	if low >= 0 {
		low += s.voteScore(own + int64(c.box.low[votes]))
	}
	return low, high + s.voteScore(own+int64(c.box.high[votes]))
}

// boundVotes finds the lowest and the highest votes for a feasible node, if the base sums foreign
// votes.
func (s *survey) boundVotes() {
	s.votesLow, s.votesHigh = math.MaxInt64, math.MinInt64
	for i, g := range s.groups {
		if g.ok == 0 || !g.feasible {
			continue
		}
		var low, high int64
		if n := len(s.b.groups); i >= n {
			low = s.b.votesOf(s.apart[i-n].node)
			high = low
		} else {
			root := s.b.groups[i].tree.root
			low, high = s.fewestVotes(int32(i), root, 1, math.MaxInt64), -s.fewestVotes(int32(i), root, -1, math.MaxInt64)
		}
		s.votesLow, s.votesHigh = min(s.votesLow, g.votes+low), max(s.votesHigh, g.votes+high)
	}
}

// fewestVotes returns the minimum of the foreign votes multiplied by sign, over all nodes below a
// cell of a group's tree that have room and are not set apart. If no value is lower than known, it
// returns known.
func (s *survey) fewestVotes(group, i int32, sign, known int64) int64 {
	t := s.b.groups[group].tree
	c := &t.cells[i]
	s.work++
	bound := c.boundVotes(sign)
	if bound >= known {
		return known
	}

	all, any := c.box.fits(s.plan.room)
	switch {
	case !any:
		return known
	case all && c.box.low[votes] == c.box.high[votes] && c.count > s.lone[group]:
		return bound
	case c.left != none:
		first, then := c.left, c.right
		if t.cells[then].boundVotes(sign) < t.cells[first].boundVotes(sign) {
			first, then = then, first
		}
		return s.fewestVotes(group, then, sign, s.fewestVotes(group, first, sign, known))
	}

	s.work += len(c.nodes)
	for _, node := range c.nodes {
		if s.isLone[node] == 0 && s.plan.room.fits(s.b.roomOf(node)) {
			known = min(known, sign*s.b.votesOf(node))
		}
	}
	return known
}

// boundVotes returns a lower bound of the votes in a cell multiplied by sign.
func (c *cell) boundVotes(sign int64) int64 {
	switch {
	case c.count == 0:
		return math.MaxInt64
	case sign < 0:
		return -int64(c.box.high[votes])
	}
	return int64(c.box.low[votes])
}

// boundRoom returns bounds of the scores for room in a cell; see box.boundScores.
func (t *tree) boundRoom(s *survey, i int32) (low, high int64) {
	c, room := &t.cells[i], s.plan.room
	if !c.alike {
		return c.box.boundScores(room)
	}
	if _, fit := c.box.fits(room); !fit {
		return noRoom, noRoom
	}
	high = int64(room.scoreUnlimited(s.b.roomOf(c.nodes[0]), s.b.balanceOf(c.nodes[0])))
	return high, high
}

// drawNode picks one of the nodes with the best total, each with the same probability. The pool
// contains all these nodes. If the drawn node does not have the best total, drawNode divides its
// cell and draws again; in every draw, all best nodes are equally likely.
func (s *survey) drawNode() int32 {
	for {
		total := int32(0)
		for i := range s.pool {
			total += s.pool[i].count
		}

		n, i := int32(s.tie.draw(int(total))), 0
		for n >= s.pool[i].count {
			n -= s.pool[i].count
			i++
		}

		p := s.pool[i]
		if p.group == none {
			return p.node
		}

		s.work++
		if node := s.b.groups[p.group].tree.nth(p.cell, n); s.isBest(p.group, node) {
			return node
		}

		s.pool[i] = s.pool[len(s.pool)-1]
		s.pool = s.pool[:len(s.pool)-1]
		s.divideCell(p)
	}
}

// isBest reports whether a node in a tree has the best total.
func (s *survey) isBest(group, node int32) bool {
	score := s.scoreOf(group, node)
	return s.isLone[node] == 0 && score >= 0 && s.fixed[group]+score == s.best
}

// divideCell adds to the pool those parts of a cell that may contain the best total. drawNode has
// already removed the cell itself from the pool.
func (s *survey) divideCell(p part) {
	t := s.b.groups[p.group].tree
	c := &t.cells[p.cell]
	if c.left == none {
		s.work += len(c.nodes)
		for _, node := range c.nodes {
			if s.isBest(p.group, node) {
				s.pool = append(s.pool, part{group: none, count: 1, node: node})
			}
		}
		return
	}

	for _, i := range [2]int32{c.left, c.right} {
		s.work++
		if _, high := s.boundCell(p.group, i); high >= 0 && s.fixed[p.group]+high >= s.best {
			s.pool = append(s.pool, part{group: p.group, cell: i, count: t.cells[i].count})
		}
	}
}
