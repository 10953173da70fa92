package rebalance

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
)

// candidate is a pod that a goal nominates, with what it would gain.
type candidate struct {
	*pod
	gain int64
	// depth is the number of pods in its domains: among equal gains, the fullest domain comes
	// first.
	depth int64
	avoid bool
	cost  *Cost // nil: nobody has asked for it yet
}

// nominations are the candidates of a goal, as a heap: of goals that choose again after every move
// only the first few are looked at.
type nominations struct {
	*search
	st   *strategy
	list []*candidate
}

// nominateCandidates returns the pods that a goal would have moved, the best first. Names have the
// last word.
//
// Pods annotated prefer-no-eviction come last, whatever they gain. Then the goal's own order
// decides, or gain, depth and cost. Pods that arrived during the plan are never candidates, but
// they are a reason to search again.
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
			if !st.anew { // the cost is that before the first move of the round
				s.costOf(c)
			}
			list.list = append(list.list, c)
		}
	}
	heap.Init(list)
	return list
}

// costOf returns what moving the candidate costs.
func (s *search) costOf(c *candidate) *Cost {
	if c.cost == nil {
		c.cost = new(s.w.protections.costOf(c.pod))
	}
	return c.cost
}

// next takes the best candidate, or returns nil.
func (l *nominations) next() *candidate {
	if len(l.list) == 0 {
		return nil
	}
	return heap.Pop(l).(*candidate)
}

// Less reports whether one candidate comes before another; with the methods below, it implements
// heap.Interface.
func (l *nominations) Less(i, j int) bool {
	a, b := l.list[i], l.list[j]
	order := cmp.Compare(boolToInt(a.avoid), boolToInt(b.avoid))
	if order == 0 && l.st.order != nil {
		order = l.st.order(a.pod, b.pod)
	}
	if order == 0 {
		order = cmp.Or(cmp.Compare(b.gain, a.gain), cmp.Compare(b.depth, a.depth))
	}
	if order == 0 { // few are compared by what takes long
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

// excessDepth returns how many pods count in the fullest of the pod's domains whose spread is
// exceeded; 0 if the goal's gauge is no ledger, or has an order. Among pods with the same gain,
// taking one from the fullest domain evens the spread out in the fewest moves: with 5, 3 and 1 pods
// and maxSkew 1, from the domain with 5.
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

// nextCandidate returns the next best candidate, and why it was not chosen. before is the candidate
// that was refused right before this one, nil if none was: that it came first and why it stays says
// more than what comes after.
func (s *search) nextCandidate(st *strategy, c, before *candidate, rest *nominations) *Next {
	if before != nil {
		return &Next{before.Namespace(), before.Name, string(s.stays[before.pod].Code) + ": " + s.stays[before.pod].Message}
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

	return &Next{next.Namespace(), next.Name, why}
}

// refusalOf returns why a pod must not be moved at all: protections, and limits that have been
// reached. It looks at the pod alone and, except for a surge, proves nothing, so it is cheap enough
// to be asked of every pod of a node before the first one is moved.
func (s *search) refusalOf(st *strategy, p *pod) (Code, string) {
	if !st.Scope.includesPod(p) {
		return Protected, "the policy leaves its namespace or labels out"
	}
	if code, why := s.w.protections.whyProtected(p, st.Evictor); code != "" {
		return code, why
	}
	// A policy that wants pods of some state renewed would otherwise evict their successors
	// forever.
	if st.renews && p.Node != nil && st.says(s.w.successorFor(p)) != "" {
		return NoBetterNode, "its successor would have to be renewed, too"
	}

	if st.Defragment != nil && isInGroup(p) {
		if why := s.w.prices.whyGroupStays(p, st.Defragment); why != "" {
			return Protected, why
		}
	}

	l, node := &s.policy.Limits, cmp.Or(p.NodeName, p.object.Spec.NodeName)
	switch {
	case l.Total != nil && s.spent.Total >= *l.Total:
		return Limit, fmt.Sprintf("the policy allows %d evictions in all", *l.Total)
	case l.PerNode != nil && s.spent.PerNode[node] >= *l.PerNode:
		return Limit, fmt.Sprintf("the policy allows %d evictions from a node", *l.PerNode)
	case l.PerNamespace != nil && s.spent.PerNamespace[p.Namespace()] >= *l.PerNamespace:
		return Limit, fmt.Sprintf("the policy allows %d evictions in a namespace", *l.PerNamespace)
	case st.most != nil && s.spent.PerCause[st.Name] >= st.most():
		return Limit, fmt.Sprintf("%s makes at most %d moves per 100 pods in one plan", st.Name, movesPer100)
	case st.Utilization != nil && st.Utilization.PerNode != nil &&
		s.spent.ByGoal[FromNode{st.Name, st.Profile, node}] >= *st.Utilization.PerNode:
		return Limit, fmt.Sprintf("%s allows %d evictions from a node", st.Name, *st.Utilization.PerNode)
	}

	return "", ""
}
