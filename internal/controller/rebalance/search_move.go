// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"slices"

	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// makeMove proves one move and makes it in the world. On success it appends the move to the search,
// and undoing the world removes the move again. On failure the world is unchanged.
func (s *search) makeMove(st *strategy, p *pod, is requirements, attempt string, closing Closing) proof {
	is.allowed = st.landingFilter()
	found := s.w.proveMove(p, is)
	if found.code != "" {
		return found
	}
	// The reason for the move and its cost must be read before the world changes.
	m := s.describeMove(st, p, found)
	m.Attempt, m.Closes, m.Closed = attempt, closing, s.newlyClosed()
	before, from := s.w.gaugeValues(), p.NodeName
	next := s.w.movePod(p, found.node)
	if !disruption.IsReady(p.object) { // its successor becomes ready before the next move
		s.w.protections.countRecovered(next)
	}
	s.noteImproved(&m, before)
	if u := st.Utilization; u != nil && u.Deviation { // another search would start from a different average
		s.w.protections.unsettled = true
	}
	s.recordMove(m, from)
	dropUntilUndone(s.w, s.stays, p)
	return proof{}
}

// dropUntilUndone removes an entry from one of the search's maps, and restores it when the
// invalidating move is undone.
func dropUntilUndone[K comparable, V any](w *world, said map[K]V, of K) {
	if before, known := said[of]; known {
		delete(said, of)
		w.Note(func() { said[of] = before })
	}
}

// newlyClosed returns the nodes closed by the search so far, excluding nodes closed before the
// plan. Moves share the list, which must not be modified.
func (s *search) newlyClosed() []string {
	if changes := s.w.closures.nodeChanges; s.newlyAsOf != changes {
		s.newlyAsOf = changes
		s.newly = slices.DeleteFunc(s.w.closures.closedNodes(), func(name string) bool { return slices.Contains(s.closed, name) })
	}
	return s.newly
}

// recordMove appends a move and counts it. from is the node to which the move is charged.
func (s *search) recordMove(m Move, from string) {
	s.moves = append(s.moves, m)
	s.countMove(from, &m, 1)
	s.w.Note(func() {
		s.moves = s.moves[:len(s.moves)-1]
		s.countMove(from, &m, -1)
	})
}

// countMove counts a move towards the limits, or uncounts it with by = -1.
func (s *search) countMove(node string, m *Move, by int) {
	s.spent.Total += by
	s.spent.PerNode[node] += by
	s.spent.PerNamespace[m.Namespace] += by
	s.spent.PerCause[m.Cause] += by
	s.spent.ByGoal[m.fromNode()] += by
}

// describeMove returns a move with everything known before it is made. found without a node
// describes the removal of a terminal pod.
func (s *search) describeMove(st *strategy, p *pod, found proof) Move {
	m := Move{
		Namespace: p.Namespace(), Name: p.Name(), UID: p.object.UID, Owner: rules.ControllerRef(p.object), From: p.NodeName,
		Surge: p.surge, NoSurge: p.noSurge, Cause: st.Name, Profile: st.Profile, Cost: s.w.protections.costOf(p), Improves: []Measure{},
	}

	if found.node != nil {
		m.To, m.successor = found.node.Name, s.w.successorFor(p).Name()
	}
	for _, n := range found.alternatives {
		m.Or = append(m.Or, n.Name)
	}

	if st.says != nil {
		m.Detail = st.says(p)
	}
	m.Cost.GraceSeconds = ptr.Deref(s.policy.GracePeriod, m.Cost.GraceSeconds)
	return m
}

// removeEnded removes terminal pods. Their controllers have replaced them already, or never will.
// The removal requires no proof: the pod holds no room, and has no successor. Limits and
// protections apply as for any other pod.
func (s *search) removeEnded(st *strategy) (moved bool) {
	g, renews := st.gauge.(*renewal)
	if !renews {
		return false
	}

	for _, p := range g.ended {
		if !g.left[p] {
			continue
		}
		if code, why := s.refusalOf(st, p); code != "" {
			s.recordStay(st, p, code, why)
			continue
		}
		m, before := s.describeMove(st, p, proof{}), s.w.gaugeValues()
		m.From = p.object.Spec.NodeName
		// Several goals may want the same pod removed; its removal satisfies all of them.
		for _, other := range s.w.gauges {
			if g, renews := other.(*renewal); renews {
				delete(g.left, p)
			}
		}
		s.noteImproved(&m, before)
		s.w.moved++
		s.recordMove(m, m.From)
		delete(s.stays, p)
		moved = true
	}

	return moved
}

// noteImproved records the gauges changed by a move.
func (s *search) noteImproved(m *Move, before []int64) {
	for i, after := range s.w.gaugeValues() {
		if before[i] != after {
			m.Improves = append(m.Improves, Measure{s.w.gauges[i].gaugeName(), before[i], after})
		}
	}
}
