// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file decides the pending pods of a group, or of all groups of a tree, in one step: it takes
// them from the queue, places them or plans room for them, and carries out the decision, which is
// in groupoutcome.go.

// scheduleGroup decides the pending pods of a group, and of the other groups of its tree, after one
// of them was popped from the queue.
func (s *attempts) scheduleGroup(g *groups.Group, popped *queue.Item) {
	together := g.Tree()
	items := []*queue.Item{popped}
	for _, g := range together {
		for _, item := range s.listQueued(g) { // in a fixed order, since the order in which items leave the queue matters
			if taken := s.queue.Take(item.Pod.UID); taken != nil {
				items = append(items, taken)
			}
		}
	}
	slices.SortFunc(items, compareMembers)
	if s.podGroups.progress.isIncomplete(g) { // an object was deleted while the pods were active; Failed gates them
		for _, item := range items {
			s.queue.Failed(item, s.now)
		}
		return
	}

	t := s.newTree(g, items)
	defer t.endGroups()
	defer t.recoverPanic()
	profile := popped.Pod.Spec.SchedulerName
	if discord := s.findDiscord(together, items); discord != nil {
		t.failAll(discord)
		s.observer().AttemptedGroup(profile, Errored, 0)
		return
	}
	for _, a := range t.leaves {
		a.beginGroup()
	}

	began := s.clock()
	result := t.settle()
	s.observer().AttemptedGroup(profile, result, s.clock().Sub(began))
}

// listQueued lists the members in the queue, in arrival order.
func (s *attempts) listQueued(g *groups.Group) (items []*queue.Item) {
	for uid := range g.Members {
		if item := s.pendingItem(uid); item != nil {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, (*queue.Item).Compare)
	return items
}

// compareMembers orders the members of a group for deciding. Within a priority the order is
// upstream's: first by the number of attempts, descending, then by age, oldest first.
func compareMembers(a, b *queue.Item) int {
	return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), cmp.Compare(b.Attempts, a.Attempts), a.Compare(b))
}

// settle decides the pods, and starts their placements or requeues them.
func (t *treeAttempt) settle() Result {
	began := t.clock()
	var settled, retry bool
	var found groupPostFilterOutcome
	if t.root == nil {
		settled, found = t.placeOrFindRoom()
	} else {
		settled, retry, found = t.placeOrPlanRoom()
	}

	took := t.clock().Sub(began)
	t.observer().Decided(took)
	t.observer().DecidedGroup(took)
	switch {
	case found.err != nil:
		t.failAll(found.err)
		return Errored
	case settled:
		t.startPlacements()
		return Scheduled
	case found.nodes != nil:
		t.awaitRoom(found.nodes, found.message)
		return WaitingOnPreemption
	case found.plan != nil && found.plan.Waits:
		t.makeRoom(found.plan)
		return WaitingOnPreemption
	}
	t.rejectAll(retry, found.message)
	return Unschedulable
}

// placeOrFindRoom places a group in no tree. If the group does not fit, it runs the plugins at
// PodGroupPostFilter.
func (t *treeAttempt) placeOrFindRoom() (settled bool, found groupPostFilterOutcome) {
	if settled, found.err = t.placeSomehow(); settled {
		return true, found
	}

	a := t.leaves[0]
	a.attempt.Rewind()
	a.resumeNominations()
	if found.err != nil {
		return false, found
	}
	found = a.findRoom()
	a.unhelped = found.toMembers
	if plan := found.plan; plan != nil && !plan.Waits {
		a.suspendNominations()
		if !a.attempt.PlaceAs(plan) {
			a.resumeNominations()
		}
	}
	return a.attempt.HasEnough(), found
}

// placeOrPlanRoom places a tree. If the tree does not fit, it plans room for it. retry is set if
// the next attempt may end differently in the same state.
func (t *treeAttempt) placeOrPlanRoom() (settled, retry bool, found groupPostFilterOutcome) {
	settled, found.err = t.placeSomehow()
	if found.err == nil && !settled {
		plan := t.planRoom()
		settled = plan != nil && !plan.Waits && t.placeAs(plan)
		retry = plan == nil && t.mayHelpToRepeat()
		found.plan = plan
	}
	return settled, retry, found
}

// recoverPanic, deferred by scheduleGroup, ends the attempt after a panic in its decision.
func (t *treeAttempt) recoverPanic() {
	value := recover()
	if value == nil {
		return
	}
	for _, a := range t.leaves {
		a.takeOff()
		a.resumeNominations()
	}
	t.reportPanic(t.leaves[0].members[0].podAttempt, value)
	for _, a := range t.leaves {
		a.endAfterPanic(value)
	}
}

// findDiscord returns upstream's error if the pending and placed pods of jointly decided groups
// name different schedulers, differ in preemption policy, or differ from the priority of the group
// (in a tree, every group has the priority of the root). Without this check, the decision order
// would determine which pods make room for others.
func (s *attempts) findDiscord(of []*groups.Group, items []*queue.Item) error {
	first := &items[0].Pod.Spec
	for _, item := range items {
		if name := item.Pod.Spec.SchedulerName; name != first.SchedulerName {
			return fmt.Errorf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q and %q",
				name, first.SchedulerName)
		}
		if err := s.podGroups.compareWithGroup(of[0], item.Class, first.PreemptionPolicy); err != nil {
			return err
		}
	}
	for _, p := range s.podGroups.units.OnNodes(of...) {
		if err := s.podGroups.compareWithGroup(of[0], p.Class, first.PreemptionPolicy); err != nil {
			return err
		}
	}
	return nil
}

// compareWithGroup returns an error if a pod's priority differs from the priority of its group. It
// also returns an error if the pod's preemption policy differs from the policy of the group (if
// group policies are enabled) or from the policy of the group's first pod.
func (gs *podGroups) compareWithGroup(g *groups.Group, class *cluster.PodClass, first *v1.PreemptionPolicy) error {
	if class.Priority != g.Priority() {
		return fmt.Errorf("all pods in a single pod group should have the same priority as the pod group's priority, got %d and %d",
			class.Priority, g.Priority())
	}
	of, all := ptr.Deref(class.Spec.PreemptionPolicy, v1.PreemptLowerPriority), ptr.Deref(first, v1.PreemptLowerPriority)
	if own := g.PreemptionPolicy(); gs.gates.Policy && of != own {
		return fmt.Errorf("all pods in a single pod group should have the same preemption policy as the pod group's preemption policy, "+
			"got %v and %v", of, own)
	}
	if of != all {
		return fmt.Errorf("all pods in a single pod group should have the same preemption policy, got %v and %v", of, all)
	}
	return nil
}
