// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// setApart finds the nodes to judge individually: nodes in domains with counted pods, if the tally
// groups nodes by count; nodes with nominated pods; and nodes outside all trees.
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

// sortApart sorts s.apart by node. If there are many entries, scanning isLone for them is faster
// than sorting.
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

// buildGroups fills the sheet with groups, and counts the nodes with room in each.
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
		lone := &s.apart[i]
		at := s.b.at[lone.node]
		g := s.newGroup(s.b.groups[at].static)
		for _, t := range s.tallies {
			g.values = append(g.values, t.value(t.topology.domain[lone.node]))
		}
		lone.bucket = s.b.scoreRoom(lone.node, s.plan.room)
		if lone.bucket >= 0 && !s.b.groups[at].repelled {
			g.ok = 1
		}
		if hadRoom := g.ok; hasBothResources(s.b.roomOf(lone.node)) {
			s.lone[at]++
			s.groups[at].ok -= hadRoom
		}
		if g.ok == 1 && s.lacksNominatedRoom(lone.node) {
			g.ok = 0
		}
	}

	s.work += len(s.b.groups) + 4*len(s.apart)
}

// lacksNominatedRoom reports whether a node cannot take the pod in addition to the pods nominated
// to it.
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
	if s.plan.foreignSummed && slices.ContainsFunc(guests, func(g *cluster.Pod) bool {
		return slices.ContainsFunc(s.plan.others.effectsOf(g.Class.Affinities).repelled, n.Has)
	}) {
		return true
	}
	if len(s.tallies) == 0 {
		return false
	}

	with := &s.nominatedCounts
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
