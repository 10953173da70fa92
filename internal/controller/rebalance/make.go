// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
)

// Maximum numbers of pinning rounds and of sequels of a plan. A plan needing more is not worth its
// moves. The limits bound the number of searches of the whole cluster, and thereby the duration of
// Make.
const (
	mostPinnings = 16
	mostSequels  = 12
)

// Make makes a plan. The plan is empty if no move provably improves anything.
//
// A second plan from the state reached by the first is empty. Most searches end with nothing left
// to do. A search that skipped something only because a pod had already been moved or placed is
// continued from its end. If the continuation would move a pod again, the pod is pinned to its
// node, and the whole plan is restarted.
//
// Make therefore searches more than once. A single search is greedy and does not move a pod twice;
// another search would move the pods skipped for that reason. A controller that plans repeatedly
// would then never stop moving pods.
func Make(state *State, policy *Policy, options Options) *Plan {
	// An empty Placing means [Exact].
	options.Placing = cmp.Or(options.Placing, Exact)
	// A pod counts as pending even if no node fits it.
	if !rules.Any(objects.All[*v1.Pod](state.World), func(p *v1.Pod) bool { return p.Spec.NodeName == "" }) {
		return planSettled(state, policy, options)
	}
	// Pending pods that fit are placed by a search without goals, and the policy is applied to the
	// resulting state. Within one search they could not be moved, and a second plan would still
	// find work.
	first, _ := searchOnce(state, &Policy{}, options, nil)
	plan := planSettled(first.After(state), policy, options)
	plan.Arrivals = append(first.Arrivals, plan.Arrivals...)
	return plan
}

// planSettled plans for a state without pending pods that fit.
//
// Pods pinned only for the first search may still be moved by a sequel, and again by the next one.
// If no plan is found for this reason, the pods are pinned for all searches, so that the other pods
// can still be moved.
func planSettled(state *State, policy *Policy, options Options) *Plan {
	pinned := map[types.UID]bool{}
	for _, throughout := range []bool{false, true} {
		for range mostPinnings {
			plan, again := planToEnd(state, policy, options, pinned, throughout)
			if plan != nil && throughout {
				plan.Notes = append(plan.Notes, fmt.Sprintf(
					"Pods that stay because they would have to move again in the next plan: %d.", len(pinned)))
			}
			if plan != nil {
				return plan
			}

			// A plan is nil because a sequel moved pods again, or because mostSequels was reached.
			// In the first case the pods are pinned for the next try; in the second, planToEnd
			// returns no pods, so the set does not grow.
			before := len(pinned)
			if pinPods(state, again, pinned); len(pinned) == before {
				break // another search would be identical
			}
		}
	}

	// The caller gets an empty plan, not an error: it still shows the stays and measures of the
	// state.
	nothing, _ := searchOnce(state, &Policy{Notes: policy.Notes}, options, nil)
	nothing.Notes = append(nothing.Notes, "No stable plan was found: each plan would be followed by another one.")
	return nothing
}

// planToEnd searches, and continues from the end of each search until nothing more can be done. It
// returns no plan if the searches would never end or would move pods again; in the second case it
// returns these pods. With throughout, the pins apply to all searches. Otherwise they apply only to
// the first search, so that the last search finds nothing even without pins.
func planToEnd(state *State, policy *Policy, options Options, pinned map[types.UID]bool, throughout bool) (plan *Plan, again []types.UID) {
	var inSequels map[types.UID]bool
	if throughout {
		inSequels = pinned
	}

	plan, settled := searchOnce(state, policy, options, pinned)
	after := state
	for range mostSequels {
		if settled {
			return plan, nil
		}
		after = plan.tail.After(after)
		on := options
		// The sequel counts towards the same limits as the plan before it.
		on.Spent = options.Spent.Plus(plan.Moves...)
		sequel, ends := searchOnce(after, policy, on, inSequels)
		if again := movedTwice(sequel); len(again) > 0 {
			return nil, again
		}
		plan.appendSequel(sequel)
		settled = ends || len(sequel.Moves) == 0 && len(sequel.Arrivals) == 0
	}

	// The sequels ran out while they still found moves.
	if !settled {
		return nil, nil
	}
	return plan, nil
}

// pinPods pins pods that a plan would move twice, together with all their siblings: another pod of
// the same owner would only take their place.
func pinPods(state *State, again []types.UID, pinned map[types.UID]bool) {
	owners := map[types.UID]bool{}
	pods := func(each func(p *v1.Pod, owner types.UID)) {
		for p := range objects.All[*v1.Pod](state.World) {
			if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
				each(p, owner.UID)
			}
		}
	}

	for _, uid := range again {
		pinned[uid] = true
	}
	pods(func(p *v1.Pod, owner types.UID) { owners[owner] = owners[owner] || slices.Contains(again, p.UID) })
	pods(func(p *v1.Pod, owner types.UID) {
		if owners[owner] {
			pinned[p.UID] = true
		}
	})
}

// searchOnce makes one search from the state. Pods in pinned stay; nil pins none. settled reports
// that another search from its end would find nothing. It is false with pins, because the next
// search may be without them.
func searchOnce(state *State, policy *Policy, options Options, pinned map[types.UID]bool) (plan *Plan, settled bool) {
	w := openWorld(state, policy, options)
	w.protections.pinned = pinned
	s := newSearch(w, policy)
	s.runGoals()
	plan = s.makePlan(state)
	plan.tail = plan
	return plan, !w.protections.unsettled && len(pinned) == 0
}

// movedTwice returns the pods of the first plan moved again by the sequel, by their UIDs in the
// state. A successor has its victim's UID with an apostrophe appended (see [successorOf]), so
// "abc'" in a sequel is the same pod as "abc" in the plan.
func movedTwice(sequel *Plan) (list []types.UID) {
	for i := range sequel.Moves {
		if uid, again := strings.CutSuffix(string(sequel.Moves[i].UID), "'"); again {
			list = append(list, types.UID(uid))
		}
	}
	return list
}

// appendSequel appends a plan made for the state reached by this one. Numbers and arrivals continue
// after the moves so far. Stays and notes are only the sequel's: a pod staying after the first plan
// may be moved by the second. Measures keep their value before the first plan.
func (plan *Plan) appendSequel(sequel *Plan) {
	offset := len(plan.Moves)
	for _, m := range sequel.Moves {
		m.Number += offset
		// To the sequel, the nodes emptied by the first plan were closed from the beginning. When
		// the whole plan is executed, they are not closed at the beginning, so they are added here.
		m.Closed = slices.Concat(plan.Empties, m.Closed)
		plan.Moves = append(plan.Moves, m)
	}
	plan.Empties = append(plan.Empties, sequel.Empties...)
	for _, a := range sequel.Arrivals {
		a.After += offset
		plan.Arrivals = append(plan.Arrivals, a)
	}
	plan.Stays, plan.Notes, plan.tail = sequel.Stays, sequel.Notes, sequel
	plan.Stays = slices.DeleteFunc(plan.Stays, func(s Stay) bool { // the plan has moved this pod to its current node
		return slices.ContainsFunc(plan.Moves, func(m Move) bool { return m.successor == s.Name && m.Namespace == s.Namespace })
	})
	for i := range plan.Measures {
		plan.Measures[i].After = sequel.Measures[i].After
	}
}
