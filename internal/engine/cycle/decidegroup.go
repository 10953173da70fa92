// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// scheduleGroup decides the pending pods of a group after one of them was popped from the queue.
func (s *attempts) scheduleGroup(g *groups.Group, popped *queue.Item) {
	if root := g.Root(); root != nil {
		s.scheduleTree(root, popped)
		return
	}

	items := []*queue.Item{popped}
	for _, uid := range s.listQueued(g) { // in a fixed order, since the order in which items leave the queue matters
		if item := s.queue.Take(uid); item != nil {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, compareMembers)
	if s.podGroups.progress.isIncomplete(g) { // an object was deleted while the pods were active; Failed gates them
		for _, item := range items {
			s.queue.Failed(item, s.now)
		}
		return
	}

	a := s.newGroup(g, items, nil)
	defer a.endGroup()
	defer a.recoverPanic()
	if discord := s.findDiscord([]*groups.Group{g}, items); discord != nil {
		a.failAll(discord)
		s.observer().AttemptedGroup(popped.Pod.Spec.SchedulerName, Errored, 0)
		return
	}
	a.beginGroup()

	began := s.clock()
	result := a.settleGroup()
	s.observer().AttemptedGroup(popped.Pod.Spec.SchedulerName, result, s.clock().Sub(began))
}

// settleGroup decides the members, and starts their placements or requeues them.
func (a *groupAttempt) settleGroup() Result {
	began := a.clock()
	a.suspendNominations()
	err := a.attempt.Place()
	var found groupPostFilterOutcome
	if err != nil || !a.attempt.HasEnough() {
		a.attempt.Rewind()
		a.resumeNominations()
		if err == nil {
			found = a.findRoom()
			err, a.unhelped = found.err, found.toMembers
		}
		if plan := found.plan; plan != nil && !plan.Waits {
			a.suspendNominations()
			if !a.attempt.PlaceAs(plan) {
				a.resumeNominations()
			}
		}
	}

	took := a.clock().Sub(began)
	a.observer().Decided(took)
	a.observer().DecidedGroup(took)
	switch {
	case err != nil:
		a.failAll(err)
		return Errored
	case a.attempt.HasEnough():
		a.startPlacements()
		return Scheduled
	case found.nodes != nil:
		a.awaitRoom(found.nodes, a.words().wordsWith(found.message))
		return WaitingOnPreemption
	case found.plan != nil && found.plan.Waits:
		a.makeGroupRoom(found.plan)
		return WaitingOnPreemption
	}
	a.rejectAll(found.message)
	return Unschedulable
}

// recoverPanic, deferred by scheduleGroup, ends the attempt of a group after a panic in its
// decision.
func (a *groupAttempt) recoverPanic() {
	if value := recover(); value != nil {
		a.takeOff()
		a.resumeNominations()
		a.reportPanic(a.members[0].placement, value)
		a.endAfterPanic(value)
	}
}
