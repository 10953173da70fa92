package cycle

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// scheduleTree decides the pending pods of a tree, one of which was popped from the queue.
func (as *attempts) scheduleTree(root *groups.Composite, popped *queue.Item) {
	tree := root.Leaves()
	items := []*queue.Item{popped}
	for _, g := range tree {
		for _, uid := range as.listQueued(g) {
			if item := as.queue.Take(uid); item != nil {
				items = append(items, item)
			}
		}
	}
	if as.podGroups.progress.isIncomplete(as.groupOf(popped)) {
		for _, item := range items {
			as.queue.Failed(item, as.now)
		}
		return
	}

	slices.SortFunc(items, compareMembers)
	t := as.newTree(root, items)
	defer t.endGroups()
	defer t.recoverPanic()
	profile := popped.Pod.Spec.SchedulerName
	if discord := as.findDiscord(tree, items); discord != nil {
		t.failAll(discord)
		as.observer().AttemptedGroup(profile, Errored, 0)
		return
	}
	for _, a := range t.leaves {
		a.beginGroup()
	}

	began := as.clock()
	result := t.settleTree()
	as.observer().AttemptedGroup(profile, result, as.clock().Sub(began))
}

// settleTree decides the pods, and starts their placements or returns them to the queue.
func (t *treeAttempt) settleTree() Result {
	began := t.clock()
	settled, err := t.placeInSomeOrder()
	retry := err == nil && !settled && t.mayHelpToRepeat()

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
	}
	t.rejectAll(retry)
	return Unschedulable
}

// placeInSomeOrder places the tree in upstream's order. If that does not suffice, the groups that
// failed come first. It tells whether some pods are placed, and these are enough.
func (t *treeAttempt) placeInSomeOrder() (settled bool, err error) {
	if settled, err = t.placeTree(nil); settled || err != nil {
		return settled, err
	}
	if !t.placed || t.shortened {
		return false, nil
	}
	failed := map[*groups.Group]bool{}
	for _, a := range t.leaves {
		failed[a.group] = !a.attempt.HasEnough() && slices.ContainsFunc(a.members, func(m *member) bool { return m.asked.Failure != nil })
	}
	return t.placeTree(failed)
}

// recoverPanic ends the attempt of a tree whose decision panicked, deferred by scheduleTree.
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
