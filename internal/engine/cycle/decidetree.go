// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// scheduleTree decides the pending pods of a tree after one of them was popped from the queue.
func (s *attempts) scheduleTree(root *groups.Composite, popped *queue.Item) {
	tree := root.Leaves()
	items := []*queue.Item{popped}
	for _, g := range tree {
		for _, uid := range s.listQueued(g) {
			if item := s.queue.Take(uid); item != nil {
				items = append(items, item)
			}
		}
	}
	if s.podGroups.progress.isIncomplete(s.groupOf(popped)) {
		for _, item := range items {
			s.queue.Failed(item, s.now)
		}
		return
	}

	slices.SortFunc(items, compareMembers)
	t := s.newTree(root, items)
	defer t.endGroups()
	defer t.recoverPanic()
	profile := popped.Pod.Spec.SchedulerName
	if discord := s.findDiscord(tree, items); discord != nil {
		t.failAll(discord)
		s.observer().AttemptedGroup(profile, Errored, 0)
		return
	}
	for _, a := range t.leaves {
		a.beginGroup()
	}

	began := s.clock()
	result := t.settleTree()
	s.observer().AttemptedGroup(profile, result, s.clock().Sub(began))
}

// settleTree decides the pods, and starts their placements or requeues them.
func (t *treeAttempt) settleTree() Result {
	began := t.clock()
	settled, err := t.placeSomehow()
	var plan *gang.RoomPlan
	retry := false
	if err == nil && !settled {
		plan = t.planRoom()
		settled = plan != nil && !plan.Waits && t.placeAs(plan)
		retry = plan == nil && t.mayHelpToRepeat()
	}

	took := t.clock().Sub(began)
	t.observer().Decided(took)
	t.observer().DecidedGroup(took)
	switch {
	case err != nil:
		t.failAll(err)
		return Errored
	case settled:
		t.startPlacements()
		return Scheduled
	case plan != nil && plan.Waits:
		t.makeRoom(plan)
		return WaitingOnPreemption
	}
	t.rejectAll(retry)
	return Unschedulable
}

// placeSomehow places the tree while protecting the room of its nominated pods from its other pods.
// If that fails, it places the tree without this protection.
func (t *treeAttempt) placeSomehow() (settled bool, err error) {
	t.beginPart()
	if settled, err = t.placeInSomeOrder(); settled || err != nil || t.shortened {
		return settled, err
	}
	return t.withoutNominations(t.placeInSomeOrder)
}

// placeInSomeOrder places the tree in upstream's order. If that fails, the failed groups are placed
// first. It reports whether enough pods are placed.
func (t *treeAttempt) placeInSomeOrder() (settled bool, err error) {
	if settled, err = t.placeTree(placeOptions{}); settled || err != nil {
		return settled, err
	}
	if !t.placed || t.shortened {
		return false, nil
	}
	failed := map[*groups.Group]bool{}
	for _, a := range t.leaves {
		failed[a.group] = !a.attempt.HasEnough() && slices.ContainsFunc(a.members, func(m *member) bool { return m.asked.Failure != nil })
	}
	return t.placeTree(placeOptions{first: failed})
}

// recoverPanic, deferred by scheduleTree, ends the attempt of a tree after a panic in its decision.
func (t *treeAttempt) recoverPanic() {
	value := recover()
	if value == nil {
		return
	}
	for _, a := range t.leaves {
		a.takeOff()
	}
	t.reportPanic(t.leaves[0].members[0].placement, value)
	for _, a := range t.leaves {
		a.endAfterPanic(value)
	}
}
