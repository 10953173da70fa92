// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// search looks for moves until no more can be proved. It makes one move at a time, the best first,
// without lookahead.
//
// A round obtains candidates from one goal, and makes the provable moves, the best first. runGoals
// repeats rounds over all goals until none moves a pod. Each move lowers its goal's gauge and
// raises no earlier one, so two goals cannot move pods back and forth.
type search struct {
	w          *world
	policy     *Policy
	strategies []*strategy
	moves      []Move
	start      []int64  // the gauges at the beginning
	closed     []string // nodes that were closed at the beginning
	newly      []string // result of newlyClosed, valid if newlyAsOf equals closures.nodeChanges
	newlyAsOf  int
	stays      map[*pod]stayed
	nodeStays  map[string]Stay
	idle       []string           // reasons of goals without work
	tried      map[*strategy]bool // goals whose attempts were made in this round
	spent      Spent              // moves counted towards the policy's limits
}

// stayed is a Stay, with the most important strategy that nominated the pod.
type stayed struct {
	Stay
	strategy *strategy
}

// newSearch returns a search in a world opened with this policy. The search changes the world, so a
// world serves only one search.
func newSearch(w *world, policy *Policy) *search {
	return &search{
		closed: w.closures.closedNodes(), w: w, policy: policy, strategies: w.strategies, start: w.gaugeValues(),
		stays: map[*pod]stayed{}, nodeStays: map[string]Stay{},
		spent: w.options.Spent.Plus(),
	}
}

// runGoals goes through the goals in order, repeatedly, until a whole round moves no pod.
func (s *search) runGoals() {
	for again := true; again; {
		again = false
		// Only the last round counts: conditions unmet for a goal in an earlier round may hold now.
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

// runRound tries a goal's candidates, and reports whether one was moved.
func (s *search) runRound(st *strategy) (moved bool) {
	if st.ready != nil && s.spent.PerCause[st.Name] == 0 {
		// A goal that has moved a pod in this run continues until its gauge is down, even after the
		// number of nodes below its thresholds has fallen under the minimum for starting.
		if why := st.ready(); why != "" {
			s.idle = append(s.idle, fmt.Sprintf("%s: %s.", st.Name, why))
			return false
		}
	}
	maps.DeleteFunc(s.stays, func(p *pod, stay stayed) bool {
		return stay.strategy == st && !rules.IsTerminal(p.object) // removeEnded records the reasons of terminal pods
	})
	list := s.nominateCandidates(st)
	var refusedBefore *candidate
	for c := list.next(); c != nil; c = list.next() {
		if st.gain(c.pod) < c.gain || s.excessDepth(st, c.pod) < c.depth {
			continue // an earlier move has already reduced its gain: the next round rechecks it
		}
		if code, why := s.refusalOf(st, c.pod); code != "" {
			s.recordStay(st, c.pod, code, why)
			refusedBefore = c
			continue
		}
		number, next := len(s.moves), s.nextCandidate(st, c, refusedBefore, list)
		is := st.moveRequirements()
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
		// The gains depend on each other: a list from before the move would be outdated.
		if st.reselects {
			return true
		}
	}
	return moved
}

// recordStay records why a pod stays. If several goals would move it, the reason of the first of
// these goals is kept, because the user must resolve that reason first.
func (s *search) recordStay(st *strategy, p *pod, code Code, message string) {
	node := cmp.Or(p.NodeName, p.object.Spec.NodeName)
	if before, has := s.stays[p]; has && slices.Index(s.strategies, before.strategy) < slices.Index(s.strategies, st) {
		return
	}
	s.stays[p] = stayed{Stay{Namespace: p.Namespace(), Name: p.Name(), Node: node, Cause: st.Name, Code: code, Message: message}, st}
}

// stayNode records why a node could not be emptied. The record is dropped if the node is emptied
// later.
func (s *search) stayNode(st *strategy, n *cluster.Node, code Code, message string) {
	s.nodeStays[n.Name] = Stay{Node: n.Name, Cause: st.Name, Code: code, Message: message}
}

// makePlan returns the results of the search.
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
		plan.Arrivals = append(plan.Arrivals, Arrival{p.Namespace(), p.Name(), p.object.UID, p.NodeName, p.after})
	}

	for p, stay := range s.stays {
		// A later goal may have moved the pod.
		if p.next == nil || s.w.placed[p.next.UID()] == nil {
			plan.Stays = append(plan.Stays, stay.Stay)
		}
	}

	plan.Stays = slices.AppendSeq(plan.Stays, maps.Values(s.nodeStays))
	slices.SortFunc(plan.Stays, func(a, b Stay) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Cause, b.Cause))
	})

	for i, after := range s.w.gaugeValues() {
		plan.Measures = append(plan.Measures, Measure{s.w.gauges[i].gaugeName(), s.start[i], after})
	}
	return plan
}
