package rebalance

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// makeMove proves one move and makes it in the world. On success the move is appended and can be
// undone with undoTo; on failure nothing has changed.
func (s *search) makeMove(st *strategy, p *pod, is wish, attempt string, closing Closing) proof {
	is.on = st.landingFilter()
	found := s.w.proveMove(p, is)
	if found.code != "" {
		return found
	}
	// What is wrong now, and what it costs, has to be read before the world changes.
	m := s.describeMove(st, p, found)
	m.Attempt, m.Closes, m.Closed = attempt, closing, s.newlyClosed()
	before, from := s.w.gaugeValues(), p.NodeName
	next, back := s.w.movePod(p, found.to)
	undo := back
	if !disruption.IsReady(p.object) { // its successor is, before the next move is made
		s.w.protections.countRecovered(next, 1)
		undo = func() {
			s.w.protections.countRecovered(next, -1)
			back()
		}
	}
	s.noteImproved(&m, before)
	if u := st.Utilization; u != nil && u.Deviation { // another search begins from another average
		s.w.protections.unsettled = true
	}
	s.recordMove(m, from, undo)
	delete(s.stays, p)
	return proof{}
}

// newlyClosed returns the nodes that the search has closed so far. Those that were closed before
// the plan need no mention.
func (s *search) newlyClosed() []string {
	return slices.DeleteFunc(s.w.closures.closedNodes(), func(name string) bool { return slices.Contains(s.closed, name) })
}

// recordMove appends a move and counts it, with a way to undo both. undo undoes the move in the
// world; nil if there is nothing to undo there. from is the node that is charged for it.
func (s *search) recordMove(m Move, from string, undo func()) {
	s.moves = append(s.moves, m)
	s.countMove(from, &m, 1)
	s.undo = append(s.undo, func() {
		if undo != nil {
			undo()
		}
		s.moves = s.moves[:len(s.moves)-1]
		s.countMove(from, &m, -1)
	})
}

// countMove counts a move towards the limits, or takes it back with by = -1.
func (s *search) countMove(node string, m *Move, by int) {
	s.spent.Total += by
	s.spent.PerNode[node] += by
	s.spent.PerNamespace[m.Namespace] += by
	s.spent.PerCause[m.Cause] += by
	s.spent.ByGoal[m.fromNode()] += by
}

// describeMove returns a move with all that can be said before it is made. found without a node
// describes the removal of a pod that has ended.
func (s *search) describeMove(st *strategy, p *pod, found proof) Move {
	m := Move{
		Namespace: p.Namespace(), Name: p.Name, UID: p.object.UID, Owner: rules.ControllerRef(p.object), From: p.NodeName,
		Surge: p.surge, NoSurge: p.noSurge, Cause: st.Name, Profile: st.Profile, Cost: s.w.protections.costOf(p), Improves: []Measure{},
	}

	if found.to != nil {
		m.To, m.successor = found.to.Name, s.w.successorFor(p).Name
	}
	for _, n := range found.or {
		m.Or = append(m.Or, n.Name)
	}

	if st.says != nil {
		m.Detail = st.says(p)
	}
	if s.policy.GracePeriod != nil {
		m.Cost.GraceSeconds = *s.policy.GracePeriod
	}
	return m
}

// removeEnded removes pods that have ended. Their controllers have replaced them already, or never
// will. No proof is needed: the pod holds no room, and nothing comes in its place. Limits and
// protections hold as for any other pod.
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
		// Several goals may want the same pod removed; it is gone for all of them.
		for _, other := range s.w.gauges {
			if g, renews := other.(*renewal); renews {
				delete(g.left, p)
			}
		}
		s.noteImproved(&m, before)
		s.w.moved++
		s.recordMove(m, m.From, nil)
		delete(s.stays, p)
		moved = true
	}

	return moved
}

// noteImproved says of a move which gauges it has changed.
func (s *search) noteImproved(m *Move, before []int64) {
	for i, after := range s.w.gaugeValues() {
		if before[i] != after {
			m.Improves = append(m.Improves, Measure{s.w.gauges[i].gaugeName(), before[i], after})
		}
	}
}

// undoMark returns a point to return to.
func (s *search) undoMark() int { return len(s.undo) }

// undoTo undoes everything since a mark, the last first.
func (s *search) undoTo(mark int) {
	for len(s.undo) > mark {
		s.undo[len(s.undo)-1]()
		s.undo = s.undo[:len(s.undo)-1]
	}
}

// closeNode closes a node in the world, and notes how to open it again. openNode does the opposite.
func (s *search) closeNode(n *cluster.Node) {
	s.w.closures.closeNode(n)
	s.undo = append(s.undo, func() { s.w.closures.openNode(n) })
}

func (s *search) openNode(n *cluster.Node) {
	s.w.closures.openNode(n)
	s.undo = append(s.undo, func() { s.w.closures.closeNode(n) })
}

// placeWaiting places the pending pods that fit now, in a way that undoTo takes back.
func (s *search) placeWaiting() { s.undo = append(s.undo, s.w.placeWaiting()) }
