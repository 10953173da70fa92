// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// After returns the state reached by a plan: victims are replaced by successors running on their
// planned nodes, arriving pods are placed, and nodes kept closed are tainted.
//
// Successors are running and ready, since the executor waits for that. The state itself is not
// changed; unchanged objects are shared. The plan must have been made by [Make] for this very
// state.
func (plan *Plan) After(state *State) *State {
	after := state.fork()
	for i := range plan.Arrivals {
		a := &plan.Arrivals[i]
		if p := after.pod(a.Namespace, a.Name, a.UID); p != nil {
			p = p.DeepCopy()
			p.Spec.NodeName, p.Status.Phase = a.Node, v1.PodRunning
			after.World.Put(p)
		}
	}

	// Claims change only if a moved pod may have claims. Otherwise claimsAfter, which carries out
	// the plan a second time, is skipped.
	var successors map[types.UID]*v1.Pod
	if plan.movesClaims(after) {
		successors = plan.claimsAfter(state, after)
	}
	for i := range plan.Moves {
		m := &plan.Moves[i]
		p := after.pod(m.Namespace, m.Name, m.UID)
		if p == nil {
			continue
		}
		after.World.Delete(p)
		if m.To == "" {
			continue
		}
		next := successors[m.UID]
		if next == nil {
			next = successorOf(after.World.Workloads().Next(p), state.AsOf)
		}
		after.World.Put(runningOn(next, m.To, state))
	}

	for _, name := range plan.Empties {
		if n := after.node(name); n != nil {
			n = n.DeepCopy()
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
			after.World.Put(n)
		}
	}
	return after
}

// movesClaims reports whether any moved or arriving pod may claim volumes or devices.
func (plan *Plan) movesClaims(state *State) bool {
	mayClaimIt := func(namespace, name string, uid types.UID) bool {
		p := state.pod(namespace, name, uid)
		return p != nil && mayClaim(p, state)
	}
	return slices.ContainsFunc(plan.Moves, func(m Move) bool { return mayClaimIt(m.Namespace, m.Name, m.UID) }) ||
		slices.ContainsFunc(plan.Arrivals, func(a Arrival) bool { return mayClaimIt(a.Namespace, a.Name, a.UID) })
}

// runningOn returns a successor running and ready on its node. Its conditions begin at the time of
// the state, so its age since readiness is 0 and adds no cost.
func runningOn(next *v1.Pod, node string, state *State) *v1.Pod {
	next = next.DeepCopy()
	next.Spec.NodeName = node
	started := metav1.NewTime(state.AsOf)
	next.Status.Phase, next.Status.StartTime = v1.PodRunning, &started
	next.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: started}}
	return next
}
