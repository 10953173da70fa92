// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// candidate is a pod nominated by a goal, with its gain.
type candidate struct {
	*pod
	gain int64
	// depth is the result of excessDepth: among candidates of equal gain, a pod of the fullest
	// domain is tried first.
	depth int64
	avoid bool
	cost  *Cost // nil until first used
}

// nominations holds the candidates of a goal in a heap, because goals that choose again after every
// move need only the first few.
type nominations struct {
	*search
	st   *strategy
	list []*candidate
}

// nominateCandidates returns the goal's candidates, the best first. The last criterion is the name.
//
// Pods annotated prefer-no-eviction are last, whatever their gain. Then the goal's own order
// decides, or gain, depth and cost. Pods that arrived during the plan are never candidates; they
// only cause another search.
func (s *search) nominateCandidates(st *strategy) *nominations {
	list := &nominations{search: s, st: st}
	among := st.among
	if among == nil {
		among = maps.Values(s.w.placed)
	}

	for p := range among {
		if p.Terminating || !st.Scope.includesPod(p) || !st.sees(p.Node) {
			continue
		}
		switch gain := st.gain(p); {
		case gain > 0 && p.late:
			s.w.protections.unsettled = true
		case gain > 0:
			c := &candidate{pod: p, gain: gain, depth: s.excessDepth(st, p), avoid: prefersNoEviction(p)}
			if !st.reselects { // the cost is computed before the first move of the round
				s.costOf(c)
			}
			list.list = append(list.list, c)
		}
	}
	heap.Init(list)
	return list
}

// costOf returns the cost of moving the candidate.
func (s *search) costOf(c *candidate) *Cost {
	if c.cost == nil {
		c.cost = new(s.w.protections.costOf(c.pod))
	}
	return c.cost
}

// next removes and returns the best candidate, or nil if there is none.
func (l *nominations) next() *candidate {
	if len(l.list) == 0 {
		return nil
	}
	return heap.Pop(l).(*candidate)
}

// Less orders the candidates; with the methods below, it implements heap.Interface.
func (l *nominations) Less(i, j int) bool {
	a, b := l.list[i], l.list[j]
	order := rules.FalseFirst(a.avoid, b.avoid)
	if order == 0 && l.st.order != nil {
		order = l.st.order(a.pod, b.pod)
	}
	if order == 0 {
		order = cmp.Or(cmp.Compare(b.gain, a.gain), cmp.Compare(b.depth, a.depth))
	}
	if order == 0 { // costs are computed only for candidates with equal gain and depth
		order, _ = l.costOf(a).compare(l.costOf(b))
	}
	if order == 0 {
		order = byName(a.pod, b.pod)
	}
	return order < 0
}

func (l *nominations) Len() int      { return len(l.list) }
func (l *nominations) Swap(i, j int) { l.list[i], l.list[j] = l.list[j], l.list[i] }
func (l *nominations) Push(x any)    { l.list = append(l.list, x.(*candidate)) }
func (l *nominations) Pop() any {
	last := len(l.list) - 1
	c := l.list[last]
	l.list = l.list[:last]
	return c
}

// excessDepth returns the number of pods in the fullest of the pod's domains with an exceeded
// spread; 0 if the goal's gauge is not a ledger, or the goal has its own order. Among pods with the
// same gain, moving a pod from the fullest domain evens out the spread in the fewest moves: of
// domains with 5, 3 and 1 pods, the domain with 5.
func (s *search) excessDepth(st *strategy, p *pod) (depth int64) {
	l, ok := st.gauge.(*ledger)
	if !ok || st.order != nil {
		return 0
	}
	for _, g := range l.concernOf(p).groups {
		if counted, in := g.countedWith(p.Node); in && g.spread != nil && g.excess > 0 {
			depth = max(depth, counted)
		}
	}
	return depth
}

// nextCandidate returns the next best candidate, with the reason for not choosing it. before is the
// candidate refused immediately before the chosen one, or nil: a better candidate, with the reason
// why it stays, is more informative than a worse candidate.
func (s *search) nextCandidate(st *strategy, c, before *candidate, rest *nominations) *Next {
	if before != nil {
		return &Next{before.Namespace(), before.Name(), string(s.stays[before.pod].Code) + ": " + s.stays[before.pod].Message}
	}
	if rest.Len() == 0 {
		return nil
	}

	next := rest.list[0]
	_, why := s.costOf(next).compare(s.costOf(c))
	switch {
	case st.order != nil && next.Node != nil && st.order(c.pod, next.pod) != 0:
		why = "it comes later in the order of " + st.Name
	case next.gain < c.gain:
		why = fmt.Sprintf("it lowers %s by %d, not by %d", st.gauge.gaugeName(), next.gain, c.gain)
	case next.depth < c.depth:
		why = "fewer pods count in its domain"
	}

	return &Next{next.Namespace(), next.Name(), why}
}

// refusalOf returns why a pod must not be moved at all: protections, and exhausted limits. It
// examines a single pod and, except for a surge, proves nothing, so it is cheap enough for every
// pod of a node before the first one is moved.
func (s *search) refusalOf(st *strategy, p *pod) (Code, string) {
	if !st.Scope.includesPod(p) {
		return Protected, "the policy excludes its namespace or labels"
	}
	if code, why := s.w.protections.whyProtected(p, st.Evictor); code != "" {
		return code, why
	}
	// Otherwise a goal that renews pods would evict their successors forever.
	if st.renews && p.Node != nil && st.says(s.w.successorFor(p)) != "" {
		return NoBetterNode, "its successor would be evicted, too"
	}

	if st.Defragment != nil && isInGroup(p) {
		if why := s.w.prices.whyGroupStays(p, st.Defragment); why != "" {
			return Protected, why
		}
	}

	l, node := &s.policy.Limits, cmp.Or(p.NodeName, p.object.Spec.NodeName)
	switch {
	case l.Total != nil && s.spent.Total >= *l.Total:
		return Limit, fmt.Sprintf("the policy allows %s in all", answer.Count(*l.Total, "eviction"))
	case l.PerNode != nil && s.spent.PerNode[node] >= *l.PerNode:
		return Limit, fmt.Sprintf("the policy allows %s from a node", answer.Count(*l.PerNode, "eviction"))
	case l.PerNamespace != nil && s.spent.PerNamespace[p.Namespace()] >= *l.PerNamespace:
		return Limit, fmt.Sprintf("the policy allows %s in a namespace", answer.Count(*l.PerNamespace, "eviction"))
	case st.most != nil && s.spent.PerCause[st.Name] >= st.most():
		return Limit, fmt.Sprintf("%s makes at most %d moves per 100 pods in one plan", st.Name, movesPer100)
	case st.Utilization != nil && st.Utilization.PerNode != nil &&
		s.spent.ByGoal[FromNode{st.Name, st.Profile, node}] >= *st.Utilization.PerNode:
		return Limit, fmt.Sprintf("%s allows %s from a node", st.Name, answer.Count(*st.Utilization.PerNode, "eviction"))
	}

	return "", ""
}
