package rebalance

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Rounds of Make: how often pods are pinned, and how often a plan is continued. A plan that needs
// more is not worth its moves.
const (
	mostPinnings = 16
	mostSequels  = 12
)

// Make plans. The plan is empty if no move can be proved to improve anything.
//
// A second plan on the state that the first one leads to is empty. Most searches end where that is
// evident. Where one skipped something only because a pod had already been moved or placed, the
// search continues from there. If that would move a pod again, the pod is pinned to its node and
// everything is planned again.
func Make(state *State, policy *Policy, options Options) *Plan {
	if options.Placing == "" {
		options.Placing = Exact
	}
	if !hasPending(state) {
		return planSettled(state, policy, options)
	}
	first, _ := searchOnce(state, &Policy{}, options, nil)
	plan := planSettled(first.After(state), policy, options)
	plan.Arrivals = append(first.Arrivals, plan.Arrivals...)
	return plan
}

func hasPending(state *State) bool {
	return slices.ContainsFunc(state.Objects, func(object metav1.Object) bool {
		p, ok := object.(*v1.Pod)
		return ok && p.Spec.NodeName == ""
	})
}

// planSettled plans for a state in which no pending pod is left that fits.
//
// If pins for the first search are not enough, a sequel would move a pinned pod, and the next one
// would move it again. Such pods are pinned throughout: all others are worth a plan still.
func planSettled(state *State, policy *Policy, options Options) *Plan {
	pinned := map[types.UID]bool{}
	for _, throughout := range []bool{false, true} {
		for range mostPinnings {
			plan, again := planToEnd(state, policy, options, pinned, throughout)
			if plan != nil && throughout {
				plan.Notes = append(plan.Notes, fmt.Sprintf("%d pods stay where they are: whoever moves one of them would have to move it again.", len(pinned)))
			}
			if plan != nil {
				return plan
			}

			before := len(pinned)
			if pinPods(state, again, pinned); len(pinned) == before {
				break // the next search would be the same
			}
		}
	}

	nothing, _ := searchOnce(state, &Policy{Notes: policy.Notes}, options, nil)
	nothing.Notes = append(nothing.Notes, "No plan was found that ends: every one of them would be followed by another one.")
	return nothing
}

// planToEnd searches, and continues from where the search ends until there is nothing left to do.
// There is no plan if that would never end, or would move pods again: those are returned. Pods are
// pinned for the first search only, so that the end is one for those who know of no pins, or
// throughout.
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
		on.Spent = options.Spent.With(plan.Moves...)
		sequel, ends := searchOnce(after, policy, on, inSequels)
		if again := movedTwice(sequel); len(again) > 0 {
			return nil, again
		}
		plan.appendSequel(sequel)
		settled = ends || len(sequel.Moves) == 0 && len(sequel.Arrivals) == 0
	}

	if !settled {
		return nil, nil
	}
	return plan, nil
}

// pinPods pins pods that a plan would move twice, with all others of their owners: one of these
// would only take its place.
func pinPods(state *State, again []types.UID, pinned map[types.UID]bool) {
	owners := map[types.UID]bool{}
	pods := func(each func(p *v1.Pod, owner types.UID)) {
		for _, object := range state.Objects {
			if p, is := object.(*v1.Pod); is {
				if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
					each(p, owner.UID)
				}
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

// searchOnce searches once. settled reports that another search from its end would find nothing.
func searchOnce(state *State, policy *Policy, options Options, pinned map[types.UID]bool) (plan *Plan, settled bool) {
	w := openWorld(state, policy, options)
	w.protections.pinned = pinned
	s := newSearch(w, policy)
	s.runGoals()
	plan = s.makePlan(state)
	plan.tail = plan
	return plan, !w.protections.unsettled && len(pinned) == 0
}

// movedTwice returns the pods of the first plan that the sequel moves again. Successors have their
// victim's UID with a mark.
func movedTwice(sequel *Plan) (list []types.UID) {
	for i := range sequel.Moves {
		if uid, again := strings.CutSuffix(string(sequel.Moves[i].UID), "'"); again {
			list = append(list, types.UID(uid))
		}
	}
	return list
}

// appendSequel appends a sequel.
func (plan *Plan) appendSequel(sequel *Plan) {
	offset := len(plan.Moves)
	for _, m := range sequel.Moves {
		m.Number += offset
		m.Closed = slices.Concat(plan.Empties, m.Closed)
		plan.Moves = append(plan.Moves, m)
	}
	plan.Empties = append(plan.Empties, sequel.Empties...)
	for _, a := range sequel.Arrivals {
		a.After += offset
		plan.Arrivals = append(plan.Arrivals, a)
	}
	plan.Stays, plan.Notes, plan.tail = sequel.Stays, sequel.Notes, sequel
	plan.Stays = slices.DeleteFunc(plan.Stays, func(s Stay) bool { // the plan has moved it there
		return slices.ContainsFunc(plan.Moves, func(m Move) bool { return m.successor == s.Name && m.Namespace == s.Namespace })
	})
	for i := range plan.Measures {
		plan.Measures[i].After = sequel.Measures[i].After
	}
}
