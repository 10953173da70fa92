// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// search is a depth-first search for a placement, with backtracking. It takes the largest members
// first and tries the best nodes first. Members that depend on other pods are tried at every point
// of this order.
//
// It is exact up to two symmetries: only one of several identical empty nodes is tried, and
// identical members are placed in the order of their nodes. The search ends when searched exceeds
// its limit.
type search struct {
	*Placer
	order     []*Member // members tried in this order
	dependent []*Member // members that depend on the pods placed before, tried at any point
	plain     bool      // no member selects nodes or has volumes or devices, so nodes that are alike are interchangeable
	until     int       // limit of searched
	ended     bool      // the search reached its limit
}

// searchPlacement searches for a placement of the needed number of members, and leaves the members
// there.
func (p *Placer) searchPlacement() bool {
	devices := p.Cluster.ResourceSlices.Len() > 0 // nodes that are otherwise alike may have different devices
	// Each untried domain gets an equal share of the remaining judgements.
	s := &search{Placer: p, plain: true, until: p.searched + (p.bound.limits.Search-p.searched)/max(1, p.bound.untried)}
	for _, m := range p.orderBySize() {
		if dependsOnOthers(m) {
			s.dependent = append(s.dependent, m)
		} else {
			s.order = append(s.order, m)
		}
		spec := m.Waiting.Class.Spec
		s.plain = s.plain && len(spec.NodeSelector)+len(spec.Volumes) == 0 && spec.Affinity() == nil &&
			(!devices || len(spec.ResourceClaims)+len(m.Waiting.Class.Requests.Scalars) == 0)
	}
	return s.placeFrom(0)
}

// placeFrom places the needed number of members, choosing from order[i:] and from the unplaced
// members of dependent.
func (s *search) placeFrom(i int) bool {
	if s.hasEnough() {
		return true
	}
	if !s.canSuffice(i) {
		return false
	}

	// Try the next member in order first, then the members that may depend on the pods placed so
	// far.
	if i < len(s.order) && s.tryNodes(s.order[i], i+1) {
		return true
	}
	var tried []*cluster.PodClass
	for _, m := range s.dependent {
		if s.ended {
			return false
		}
		if m.Node != nil || slices.Contains(tried, m.Asked.Class) {
			continue
		}
		if s.tryNodes(m, i) {
			return true
		}
		tried = append(tried, m.Asked.Class)
	}

	return !s.ended && i < len(s.order) && s.placeFrom(i+1) // skip order[i]
}

// canSuffice reports whether placing all remaining members would be enough.
func (s *search) canSuffice(i int) bool {
	left := len(s.order) - i
	for _, m := range s.dependent {
		if m.Node == nil {
			left++
		}
	}
	return len(s.tentative.placed)+left >= s.Need
}

// tryNodes tries all nodes for a member, and continues the search from order[i:] with each node.
func (s *search) tryNodes(m *Member, i int) bool {
	if s.searched += s.Cluster.Len(); s.searched > s.until {
		s.ended, s.gaveUp = true, true
		return false
	}

	first := s.firstNodeFor(m)
	verdicts, feasible := s.feasibleNodes(m, first)
	tried := map[likeness]bool{}
	for _, v := range verdicts {
		if key := likenessOf(v.Node); first < 0 && s.plain {
			if tried[key] {
				continue
			}
			tried[key] = true
		}

		position := len(s.tentative.placed)
		if s.tentative.Place(m, decide.Decision{Node: v.Node, Total: v.Total, Feasible: feasible}) != nil {
			continue
		}
		if s.placeFrom(i) {
			return true
		}
		s.tentative.Rewind(position)
		if s.ended {
			return false
		}
	}

	return false
}

// firstNodeFor returns the index of the first node to try for a member. If the member and the last
// placed member are alike, nodes before the node of that placed member are skipped. Otherwise the
// result is -1.
func (s *search) firstNodeFor(m *Member) int32 {
	last := len(s.tentative.placed) - 1
	if last < 0 || m.Waiting.Class.HasAffinity() || dependsOnOthers(m) {
		return -1
	}
	if before := s.tentative.placed[last]; decidedAlike(before, m) {
		return before.Node.Index
	}
	return -1
}

// feasibleNodes lists the feasible nodes of a member with an index of at least first, best first.
func (s *search) feasibleNodes(m *Member, first int32) (verdicts []*decide.NodeVerdict, feasible int) {
	e := s.Decider.Plain().Evaluate(m.Asked)
	if e.Err != nil {
		return nil, 0
	}
	for j := range e.Nodes {
		if v := &e.Nodes[j]; v.Rejection == nil && v.Node.Index >= first {
			verdicts = append(verdicts, v)
		}
	}
	slices.SortStableFunc(verdicts, func(a, b *decide.NodeVerdict) int { return b.Compare(a) })
	return verdicts, e.Feasible
}

// likeness is equal for interchangeable nodes, which are empty and have the same parts. The
// likeness of a node with pods or nominated pods is unique.
type likeness struct {
	cluster.Parts
	node *cluster.Node // set if the node has pods or nominated pods
}

func likenessOf(n *cluster.Node) likeness {
	l := likeness{Parts: n.Parts}
	if len(n.Pods)+len(n.Nominated) > 0 {
		l.node = n
	}
	return l
}
