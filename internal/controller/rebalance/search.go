package rebalance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// search looks for moves until no more can be proved. It makes one move at a time, the best first,
// and does not look ahead.
//
// A round asks one goal for candidates, and moves those that it can prove, the best first. runGoals
// repeats rounds over all goals until none moves a pod. Each move lowers its goal's gauge and
// raises none before it, so two goals cannot move pods back and forth.
type search struct {
	w          *world
	policy     *Policy
	strategies []*strategy
	moves      []Move
	start      []int64  // the gauges at the beginning
	closed     []string // nodes that were closed at the beginning
	stays      map[*pod]stayed
	nodeStays  map[string]Stay
	idle       []string           // why goals had nothing to do
	tried      map[*strategy]bool // attempts that are made once a round
	spent      Spent              // towards the policy's limits
}

// stayed is a Stay, and the strategy that nominated the pod: of several the most important.
type stayed struct {
	Stay
	of *strategy
}

// newSearch returns a search in a world that has been opened with this policy. It changes the
// world, so a world serves one search.
func newSearch(w *world, policy *Policy) *search {
	return &search{
		closed: w.closures.closedNodes(), w: w, policy: policy, strategies: w.strategies, start: w.gaugeValues(),
		stays: map[*pod]stayed{}, nodeStays: map[string]Stay{},
		spent: w.options.Spent.With(),
	}
}

// runGoals goes through the goals in order, repeatedly, until a whole round moves no pod.
func (s *search) runGoals() {
	for again := true; again; {
		again = false
		// Only the last round counts: what a goal waited for in an earlier one may have come true.
		s.idle, s.tried = nil, map[*strategy]bool{}
		for _, st := range s.strategies {
			again = s.removeEnded(st) || again
			step := s.runRound
			if st.attempts != nil {
				step = func(st *strategy) bool { return st.attempts(s) }
			}
			for step(st) {
				again = true
			}
		}
	}
}

// candidate is a pod that a goal nominates, with what it would gain.
type candidate struct {
	*pod
	gain int64
	// depth is the number of pods in its domains: among equal gains, the fullest domain comes
	// first.
	depth int64
	cost  Cost
}

// runRound tries the pods that a goal nominates, and reports whether one was moved.
func (s *search) runRound(st *strategy) (moved bool) {
	if st.ready != nil && s.spent.PerCause[st.Name] == 0 {
		// A goal that has moved a pod in this run goes on until its gauge is down, although by then
		// fewer nodes are below its thresholds than it takes to begin.
		if why := st.ready(); why != "" {
			s.idle = append(s.idle, fmt.Sprintf("%s: %s.", st.Name, why))
			return false
		}
	}
	for p, stay := range s.stays {
		if stay.of == st && !rules.IsTerminal(p.object) { // removeEnded says why those stay
			delete(s.stays, p)
		}
	}
	list := s.nominateCandidates(st)
	var refusedBefore *candidate
	for i := range list {
		c := &list[i]
		if st.gain(c.pod) < c.gain || s.excessDepth(st, c.pod) < c.depth {
			continue // an earlier move has helped it already: the next round looks again
		}
		if code, why := s.refusalOf(st, c.pod); code != "" {
			s.recordStay(st, c.pod, code, why)
			refusedBefore = c
			continue
		}
		number, next := len(s.moves), s.nextCandidate(st, c, refusedBefore, list[i+1:])
		is := st.moveWish()
		if st.price != nil {
			is.least = st.price(c.pod)
		}
		if why := s.makeMove(st, c.pod, is, "", ""); why.code != "" {
			s.recordStay(st, c.pod, why.code, why.message)
			refusedBefore = c
			continue
		}
		s.moves[number].Next = next
		moved, refusedBefore = true, nil
		// Its gains depend on each other: a list from before the move would be followed too long.
		if st.anew {
			return true
		}
	}
	return moved
}

// nominateCandidates returns the pods that a goal would have moved, the best first. Names have the
// last word.
//
// Pods annotated prefer-no-eviction come last, whatever they gain. Then the goal's own order
// decides, or gain, depth and cost. Pods that arrived during the plan are never candidates, but
// they are a reason to search again.
func (s *search) nominateCandidates(st *strategy) (list []candidate) {
	among := maps.Values(s.w.placed)
	if st.among != nil {
		among = st.among()
	}
	for p := range among {
		if p.Terminating || !st.Scope.includesPod(p) || !st.sees(p.Node) {
			continue
		}
		switch gain := st.gain(p); {
		case gain > 0 && p.late:
			s.w.protections.unsettled = true
		case gain > 0:
			list = append(list, candidate{p, gain, s.excessDepth(st, p), s.w.protections.costOf(p)})
		}
	}

	slices.SortFunc(list, func(a, b candidate) int {
		avoid := cmp.Compare(boolToInt(a.cost.avoid), boolToInt(b.cost.avoid))
		if st.order != nil {
			if by := st.order(a.pod, b.pod); avoid != 0 || by != 0 {
				return cmp.Or(avoid, by)
			}
		}
		cost, _ := a.cost.compare(&b.cost)
		return cmp.Or(avoid, cmp.Compare(b.gain, a.gain), cmp.Compare(b.depth, a.depth), cost, byName(a.pod, b.pod))
	})

	return list
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
func (s *search) nextCandidate(st *strategy, c, before *candidate, rest []candidate) *Next {
	if before != nil {
		return &Next{before.Namespace(), before.Name, string(s.stays[before.pod].Code) + ": " + s.stays[before.pod].Message}
	}
	if len(rest) == 0 {
		return nil
	}

	next := &rest[0]
	_, why := next.cost.compare(&c.cost)
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

// makeMove proves one move and makes it in the world. On success the move is appended, and undone
// with the world; on failure nothing has changed.
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
	next := s.w.movePod(p, found.to)
	if !disruption.IsReady(p.object) { // its successor is, before the next move is made
		s.w.protections.countRecovered(next)
	}
	s.noteImproved(&m, before)
	if u := st.Utilization; u != nil && u.Deviation { // another search begins from another average
		s.w.protections.unsettled = true
	}
	s.recordMove(m, from)
	delete(s.stays, p)
	return proof{}
}

// newlyClosed returns the nodes that the search has closed so far. Those that were closed before
// the plan need no mention.
func (s *search) newlyClosed() []string {
	return slices.DeleteFunc(s.w.closures.closedNodes(), func(name string) bool { return slices.Contains(s.closed, name) })
}

// recordMove appends a move and counts it. from is the node that is charged for it.
func (s *search) recordMove(m Move, from string) {
	s.moves = append(s.moves, m)
	s.countMove(from, &m, 1)
	s.w.Note(func() {
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
		s.recordMove(m, m.From)
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

// recordStay notes why a pod stays. Of several goals that want it moved, the first in the policy
// speaks: its reason is the one that the user has to remove first.
func (s *search) recordStay(st *strategy, p *pod, code Code, message string) {
	node := p.NodeName
	if node == "" {
		node = p.object.Spec.NodeName
	}
	if before, has := s.stays[p]; has && slices.Index(s.strategies, before.of) < slices.Index(s.strategies, st) {
		return
	}
	s.stays[p] = stayed{Stay{Namespace: p.Namespace(), Name: p.Name, Node: node, Cause: st.Name, Code: code, Message: message}, st}
}

// stayNode notes why a node could not be emptied. A node that is emptied later loses the note
// again.
func (s *search) stayNode(st *strategy, n *cluster.Node, code Code, message string) {
	s.nodeStays[n.Name] = Stay{Node: n.Name, Cause: st.Name, Code: code, Message: message}
}

// makePlan returns what was found.
func (s *search) makePlan(state *State) *Plan {
	plan := &Plan{
		APIVersion: APIVersion, Kind: Kind, Placing: s.w.options.Placing, Moves: []Move{}, Stays: []Stay{},
		Notes: slices.Concat(s.policy.Notes, s.idle), Measures: []Measure{}, options: s.w.options,
	}

	if !state.AsOf.IsZero() {
		plan.AsOf = metav1.NewTime(state.AsOf)
	}
	plan.Moves = append(plan.Moves, s.moves...)
	for i := range plan.Moves {
		plan.Moves[i].Number = i + 1
	}

	plan.Empties = s.newlyClosed()
	for _, p := range s.w.arrivals {
		plan.Arrivals = append(plan.Arrivals, Arrival{p.Namespace(), p.Name, p.object.UID, p.NodeName, p.after})
	}

	for p, stay := range s.stays {
		// A pod may have stayed for one goal and been moved by a later one.
		if p.next == nil || s.w.placed[p.next.UID] == nil {
			plan.Stays = append(plan.Stays, stay.Stay)
		}
	}

	for _, stay := range s.nodeStays {
		plan.Stays = append(plan.Stays, stay)
	}
	slices.SortFunc(plan.Stays, func(a, b Stay) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Cause, b.Cause))
	})

	for i, after := range s.w.gaugeValues() {
		plan.Measures = append(plan.Measures, Measure{s.w.gauges[i].gaugeName(), s.start[i], after})
	}
	return plan
}
