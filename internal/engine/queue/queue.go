// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/pacing"
)

// Queue holds the pending pods. See New.
//
// Invariant ([Queue.Check]): every item is in items, and in exactly one place. Active and Backoff
// items are in lines. Waiting and Gated items are in a group. A Taken item is being decided or
// bound, and is in neither.
type Queue struct {
	// FirstBackoff and LastBackoff are the shortest and the longest back-off; MaxWait is the
	// maximum wait of a pod for an event.
	FirstBackoff, LastBackoff, MaxWait time.Duration
	// WaitOutBackoff: pods are never popped before their back-off is over, even without any active
	// pod. It is set before the first pod is added.
	WaitOutBackoff bool
	// Admit, if set, returns the name of the plugin that gates the pod, or "". It is called
	// whenever a pod is about to become active or to back off.
	Admit func(*Item) (gate string)
	// Admitted, if set, is called when a pod passes all gates for the first time.
	Admitted func(*Item)
	// Moved, if set, is called when a pod has moved to a place, with the label of the event that
	// caused the move.
	Moved func(item *Item, label string)
	// Grouped: the pods of a pod group are decided together. It is set before the first pod is
	// added.
	Grouped bool
	// EntityOf, if set, returns the entity that a group is decided with: the group itself, or the
	// root composite of its tree. [Queue.Regroup] is called when the result changes.
	EntityOf func(group cluster.Name) (name cluster.Name, composite bool)
	// EntityMoved, if set, is called when an entity (a pod group or an ungrouped pod) has moved to
	// a place. It is not called for a pod that follows other pods of its group into a place.
	EntityMoved func(place Place, label string, group bool)
	// Counted, if set, is called when the number of pods kept waiting by a plugin changes by delta.
	Counted func(plugin, schedulerName string, delta int)

	// Asked, if set, is called after every hint.
	Asked Asked

	items   map[types.UID]*Item
	most    int // largest length of items; see cluster.Shrunk
	lines   lines
	groups  groups
	counts  [Gated + 1]int    // number of items by place
	counted map[[2]string]int // sum of the calls of Counted, by plugin and scheduler name
	arrived uint64            // order of the newest item

	entities entities

	interests map[string]Interests // interests by scheduler name
	happened  history
}

// New returns an empty queue with upstream's limits.
func New() *Queue {
	q := &Queue{
		FirstBackoff: InitialBackoff, LastBackoff: MaxBackoff, MaxWait: MaxWait,
		items: map[types.UID]*Item{}, interests: map[string]Interests{}, counted: map[[2]string]int{},
		lines:    lines{erring: ordered{before: func(a, b *Item) bool { return a.ReadyAt.Before(b.ReadyAt) }}},
		groups:   groups{byKey: map[groupKey]*group{}, open: map[*group]bool{}, waiters: map[*Interest]*waiters{}},
		entities: entities{groups: map[entityName]*groupEntity{}},
	}
	q.OrderBy(nil)
	return q
}

// OrderBy sets the order of active pods; nil is the default, by priority and then by age.
func (q *Queue) OrderBy(less func(a, b *Item) bool) {
	if less == nil {
		less = moreUrgent
	}
	q.lines.orderBy(less, func(ready time.Time) time.Time {
		// As upstream, pods with back-offs ending within the same second are ordered by urgency,
		// unless WaitOutBackoff is set.
		if q.WaitOutBackoff {
			return ready
		}
		return ready.Truncate(time.Second)
	})
}

// SetInterests sets the helpful events for pods of a scheduler name, including already waiting
// pods. Waiting pods are regrouped but not woken.
func (q *Queue) SetInterests(schedulerName string, interests Interests) {
	q.interests[schedulerName] = interests
	for _, item := range q.Sorted() {
		if item.group != nil && item.Pod.Spec.SchedulerName == schedulerName {
			rejectors, pending := item.group.rejectors, item.group.pending
			q.groups.removeItem(item)
			q.groups.addItem(item, rejectors, pending, interests)
		}
	}
}

// Add adds a pod missing from the queue. The pod becomes active, or is gated. The queue keeps pod,
// and never changes it.
func (q *Queue) Add(pod *v1.Pod, class *cluster.PodClass, now time.Time) *Item {
	q.arrived++
	item := &Item{Progress: Progress{Since: now, Returned: now}, Pod: pod, Class: class, order: q.arrived}
	q.items[pod.UID] = item
	q.items = cluster.Shrunk(q.items, &q.most)
	// A new item is Taken until enterPlace has put it into its place, so it is moved in the same
	// way as an item returning from an attempt.
	q.counts[Taken]++
	if q.Grouped {
		q.entities.join(item, q.EntityOf)
	}
	q.enterPlace(item, Appeared, now)
	return item
}

// Update replaces a pod's object. actions are the relevant changes. A waiting or gated pod is woken
// if these changes can help it.
func (q *Queue) Update(item *Item, pod *v1.Pod, class *cluster.PodClass, actions Action, now time.Time) {
	old := item.Pod
	item.Pod = pod
	if item.Class != class {
		item.Class = class
		if item.group != nil {
			q.groups.regroupItem(item)
		}
	}
	event := &Event{Resource: Pod, Action: actions, Label: updateLabel(actions), Old: old, New: pod, Own: item}
	switch item.place {
	// The priority may have changed, which changes the position in the heap.
	case Active, Backoff:
		heap.Fix(q.lines.lineOf(item), item.index)
	case Taken: // the update may help if the current attempt ends with a rejection
		if actions != 0 {
			q.happened.noteEvent(event, true)
		}
	case Gated, Waiting:
		if actions != 0 {
			q.helpItem(item, item.group.helpFor(item, event, q.Asked), event.Label, now)
		}
	}
}

// Remove forgets a pod. If a Taken pod is removed, Rejected, Failed, TryAgain and GoOn ignore it
// later.
func (q *Queue) Remove(uid types.UID) {
	if item, ok := q.items[uid]; ok {
		q.leavePlace(item)
		q.countWaiting(item, nil)
		q.entities.leave(item)
		q.counts[Taken]--
		delete(q.items, uid)
		q.items = cluster.Shrunk(q.items, &q.most)
	}
}

// Retire stops counting the pods as waiting for plugins: another queue now holds all of them. The
// retired queue must not be used afterwards.
func (q *Queue) Retire() {
	for of, pods := range q.counted {
		q.Counted(of[0], of[1], -pods)
	}
}

// Get returns the item of a pod, or nil.
func (q *Queue) Get(uid types.UID) *Item { return q.items[uid] }

// Len returns the number of pods in a place.
func (q *Queue) Len(p Place) int { return q.counts[p] }

// Each yields all items in no particular order.
func (q *Queue) Each(yield func(*Item) bool) {
	for _, item := range q.items {
		if !yield(item) {
			return
		}
	}
}

// Sorted returns all items in arrival order. Each call sorts all items.
func (q *Queue) Sorted() []*Item { return q.SortedIf(func(*Item) bool { return true }) }

// SortedIf returns the wanted items in arrival order.
func (q *Queue) SortedIf(wanted func(*Item) bool) (items []*Item) {
	for item := range q.Each {
		if wanted(item) {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, inOrder)
	return items
}

// inOrder compares items by arrival.
func inOrder(a, b *Item) int { return cmp.Compare(a.order, b.order) }

// Pop takes the most urgent active pod. Without active pods, it takes a rejected pod that is still
// in back-off, as upstream does since v1.33 (SchedulerPopFromBackoffQ), unless WaitOutBackoff is
// set. Pods with failed attempts complete their back-off, because the cause of the failure may need
// the time to clear. The item is Taken until Rejected, Failed, TryAgain or GoOn requeues it, or
// Remove removes it.
func (q *Queue) Pop(now time.Time) *Item {
	if item := q.Next(now); item != nil {
		return q.Take(item.Pod.UID)
	}
	return nil
}

// Next returns the item that Pop would take, or nil. It changes nothing except moving items with a
// finished back-off to the active queue.
func (q *Queue) Next(now time.Time) *Item {
	q.advanceBackoff(now)
	return q.lines.next(now, !q.WaitOutBackoff)
}

// restedAt returns the time from which a pod may be popped during its back-off: immediately, unless
// it has been rejected many times in a row. Without this limit, pods whose rejections wake each
// other would monopolize an idle scheduler.
func (i *Item) restedAt() time.Time {
	const many, rest = 10, 10 * time.Millisecond
	if i.Rejected < many {
		return time.Time{}
	}
	return i.Returned.Add(rest)
}

// Held records that the pod is assumed on a node but may still be rejected. After such a rejection,
// only events later than this call count as having occurred during the attempt.
func (q *Queue) Held(item *Item) { item.seen = q.happened.events }

// Rejected puts back a pod that fits nowhere, to wait for an event that can resolve the rejection
// by one of its rejectors. If such an event occurred during the attempt, the pod backs off instead.
// pending lists the plugins that made the pod wait; an event registered by one of them also ends
// the back-off.
func (q *Queue) Rejected(item *Item, rejectors, pending []string, now time.Time) {
	if !q.isTaken(item) {
		return
	}
	item.Rejected++
	item.Failed, item.Continued, item.Returned = 0, 0, now
	item.ReadyAt = now.Add(q.backoffFor(item, item.Rejected))
	item.Rejectors, item.Pending, item.EnteredAt, item.Overdue = rejectors, pending, now, false
	q.countWaiting(item, rejectors)
	// The item enters its group, and leaves it again if a helpful event has occurred: only the
	// group holds the interests of the item.
	q.waitFor(item, rejectors, pending, Waiting)
	if !q.helpItem(item, item.group.missedHelp(item, &q.happened, item.seen, q.Asked), AttemptFailed, now) {
		q.reportMoved(item, AttemptFailed)
	}
}

// Failed puts back a pod after an attempt that failed without a verdict: for example an API error
// or a removed node. The pod completes its back-off, and needs no event.
func (q *Queue) Failed(item *Item, now time.Time) {
	if !q.isTaken(item) {
		return
	}
	item.Failed++
	item.Continued, item.Returned = 0, now
	item.ReadyAt = now.Add(q.backoffFor(item, item.Failed))
	item.Rejectors, item.Pending, item.Overdue = nil, nil, false
	q.enterPlace(item, AttemptFailed, now)
}

// TryAgain puts back a pod that was left out when its group was placed. The pod is retried
// immediately, together with the other remaining pods, and keeps its position among pods of the
// same priority.
func (q *Queue) TryAgain(item *Item, now time.Time) {
	if !q.isTaken(item) {
		return
	}
	item.Rejected, item.Failed = 0, 0
	item.ReadyAt = now
	item.Rejectors, item.Pending, item.Overdue = nil, nil, false
	q.enterPlace(item, AttemptFailed, now)
}

// GoOn puts back a pod after an unfinished attempt that made progress. The pod is retried after the
// other active pods of its priority.
func (q *Queue) GoOn(item *Item, now time.Time) {
	if !q.isTaken(item) {
		return
	}
	item.Continued++
	item.Returned, item.ReadyAt = now, now
	item.Rejectors, item.Pending, item.Overdue = nil, nil, false
	q.enterPlace(item, AttemptFailed, now)
}

// isTaken reports whether the item is still in the queue: its pod may have been removed during the
// attempt.
func (q *Queue) isTaken(item *Item) bool {
	return q.items[item.Pod.UID] == item && item.place == Taken
}

// Happened wakes the pods that an event can help. The queue keeps the event only while an attempt
// is running; Rejected examines the kept events.
func (q *Queue) Happened(event *Event, now time.Time) {
	q.happened.noteEvent(event, q.counts[Taken] > 0)
	q.groups.eachHelped(event, q.Asked, func(item *Item, h help) { q.helpItem(item, h, event.Label, now) })
}

// Activate makes a pod active immediately, regardless of the events it waits for, unless a gate
// rejects it. If a Taken pod is rejected later, it backs off instead of waiting for an event.
func (q *Queue) Activate(uid types.UID, now time.Time) {
	item, ok := q.items[uid]
	switch {
	case !ok || item.place == Active:
		return
	case item.place == Taken:
		q.happened.noteEvent(&Event{Resource: AnyResource, Action: All, Label: ForceActivate, Own: item}, true)
		return
	}
	item.ReadyAt = now
	q.wakeItem(item, ForceActivate, now)
}

// Wake retries a waiting or gated pod after its back-off. It ignores pods in other places.
func (q *Queue) Wake(uid types.UID, label string, now time.Time) {
	if item, ok := q.items[uid]; ok && item.group != nil {
		q.wakeItem(item, label, now)
	}
}

// Recheck reruns the gates for a pod that is active or in back-off. It is for gates that depend on
// other pods.
func (q *Queue) Recheck(uid types.UID, label string, now time.Time) {
	item, ok := q.items[uid]
	if ok && (item.place == Active || item.place == Backoff) && q.gateFor(item) != "" {
		q.leavePlace(item)
		q.enterPlace(item, label, now)
	}
}

// Retry retries a rejected pod after the failure of an action meant to help it, such as a
// preemption. The pod completes its back-off.
func (q *Queue) Retry(uid types.UID, label string, now time.Time) {
	item, ok := q.items[uid]
	if !ok || item.group == nil || item.place == Gated && q.gateFor(item) == item.Gate {
		return
	}
	q.leavePlace(item)
	item.Failed++
	q.enterPlace(item, label, now)
}

// Flush wakes the pods waiting for at least MaxWait, in case an event was missed, or a plugin's
// interests are incomplete. The gate of a gated pod is called again. If the pod stays gated, Flush
// waits another MaxWait before the next call.
func (q *Queue) Flush(now time.Time) {
	overdue := q.SortedIf(func(item *Item) bool {
		return item.group != nil && now.Sub(pacing.Later(item.Returned, item.Flushed)) >= q.MaxWait
	})
	for _, item := range overdue {
		item.Overdue, item.Flushed = true, now
		q.wakeItem(item, WaitedForTooLong, now)
		item.Overdue = item.place != Gated
	}
}

// NextReady returns the earliest time at which Pop returns a pod without any further event; zero
// means now. ok is false if Pop returns no pod without a further event.
func (q *Queue) NextReady() (at time.Time, ok bool) {
	return q.lines.nextReady(!q.WaitOutBackoff)
}
