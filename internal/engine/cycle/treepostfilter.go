// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"github.com/berth-k8s/berth/internal/engine/gang"
)

// This file makes room for a tree that does not fit.

// treeRoom is package gang's view of a tree.
type treeRoom struct{ *treeAttempt }

// Place places the tree in upstream's order, or in any order if anyhow is set.
func (t treeRoom) Place(anyhow bool) bool {
	place := func() (bool, error) { return t.placeTree(placeOptions{}) }
	if anyhow {
		place = t.placeInSomeOrder
	}
	settled, err := place()
	return err == nil && settled
}

// PlaceWith places the tree in upstream's order, with preemption.
func (t treeRoom) PlaceWith(room *gang.TreeRoom) bool {
	settled, err := t.placeTree(placeOptions{preemption: room})
	return err == nil && settled
}

// Rewind takes the tree off its nodes.
func (t treeRoom) Rewind() { t.rewind(t.root) }

// Placed lists the attempts of the placed groups.
func (t treeRoom) Placed() (list []*gang.Attempt) {
	for _, a := range t.leaves {
		if len(a.attempt.Placed()) > 0 {
			list = append(list, a.attempt)
		}
	}
	return list
}

// Remember returns a function restoring the current placement of the groups.
func (t treeRoom) Remember() (restore func()) { return t.remember() }

// asOne returns an attempt for all pods of the tree together. It does not decide any pods.
func (t *treeAttempt) asOne() *gang.Attempt {
	r := t.requestFor(t.leaves)
	r.Eligible, r.Need = nil, 1
	r.Limits, r.Earlier = t.limits, gang.Memory{Shortened: t.root.Shortened}
	return gang.New(r)
}

// planRoom plans the victims for the tree. It returns nil if preemption would not help, or if the
// tree may fit after a longer search, which the next attempt makes first. It leaves the state of
// the tree unchanged.
func (t *treeAttempt) planRoom() *gang.RoomPlan {
	if t.root == nil {
		return t.leaves[0].planRoom()
	}
	if t.shortened && t.root.Shortened < gang.MostDoublings {
		return nil
	}
	all := t.asOne()
	if !all.MayPreempt() {
		return nil
	}

	began := t.clock()
	t.preemptions.forgetCounted()
	restore := t.remember()
	t.beginPart()
	plan := all.PlanTree(treeRoom{t})
	shortened := t.shortened || all.Verdict().Shortened
	restore()
	t.shortened = t.shortened || plan == nil && shortened

	if lead := t.leaves[0]; !lead.trial {
		lead.observePlan(plan, outcomeOf(all, plan), t.clock().Sub(began))
	}
	return plan
}

// placeAs counts the pods on the nodes of a plan. If that fails, it returns false, and no pod is
// placed.
func (t *treeAttempt) placeAs(plan *gang.RoomPlan) bool {
	for _, a := range t.leaves {
		own := &gang.RoomPlan{}
		for _, p := range plan.Places {
			if a.byAsked[p.Member] != nil {
				own.Places = append(own.Places, p)
			}
		}
		if len(own.Places) > 0 && !a.attempt.PlaceAs(own) {
			t.rewind(t.root)
			return false
		}
	}
	return true
}

// withoutNominations places the tree with the nominations of its pods suspended. Pods without a
// node afterwards are nominated again. Without nominations, it places nothing.
func (t *treeAttempt) withoutNominations(place func() (settled bool, err error)) (settled bool, err error) {
	var nominated []*gang.Member
	for _, a := range t.leaves {
		for _, m := range a.members {
			if t.cluster.Nominated(m.Pod.UID) != nil {
				nominated = append(nominated, m.asked)
			}
		}
	}
	if len(nominated) > 0 {
		err = gang.WithoutNominations(t.cluster, nominated, func() error {
			settled, err = place()
			return err
		})
	}
	return settled, err
}
