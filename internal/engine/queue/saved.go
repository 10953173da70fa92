// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "k8s.io/apimachinery/pkg/types"

// Saved is the queue's state of a pod, without its API state. The fields Patient, Together and
// Continued of [Item] are omitted: Patient is set when the pod is added, and Together is set by
// each attempt. Continued is reset to 0, since the partial results of attempts are in caches, which
// are not saved.
type Saved struct {
	UID   types.UID
	Place Place
	Progress
}

// Save returns the state of all pods, in arrival order. No pod may be Taken.
func (q *Queue) Save() (all []Saved) {
	all = make([]Saved, 0, len(q.items))
	for _, i := range q.Sorted() {
		all = append(all, Saved{UID: i.Pod.UID, Place: i.place, Progress: i.Progress})
	}
	return all
}

// Restore puts the pods into the places that they had in the saved queue. It wakes no pods, since
// the saved queue has handled all earlier events. Saved pods missing from this queue are skipped.
// Pods without a saved state are ordered after the restored pods.
func (q *Queue) Restore(all []Saved) {
	before := q.arrived
	// The heaps are filled again in the final order, which compares far fewer pods than removing
	// each pod from its heap.
	q.lines.clear()
	for i := range all {
		item := q.items[all[i].UID]
		if item == nil || item.order > before || item.place == Taken || all[i].Place == Taken {
			continue
		}
		if item.group != nil {
			q.groups.removeItem(item)
		}
		q.putItem(item, Taken)
		q.arrived++
		item.order = q.arrived
		q.restoreItem(item, &all[i])
	}

	others := q.SortedIf(func(item *Item) bool { return item.order <= before && item.place != Taken })
	for _, item := range others {
		q.arrived++
		item.order = q.arrived
		if item.group == nil {
			q.lines.addItem(item)
		}
	}
}

// restoreItem puts a Taken item into its saved place. It does not run the gates, because the saved
// queue has already run them.
func (q *Queue) restoreItem(item *Item, s *Saved) {
	q.countWaiting(item, s.Counted)
	item.Progress = s.Progress

	switch s.Place {
	case Gated:
		q.waitFor(item, []string{s.Gate}, nil, Gated)
	case Waiting:
		q.waitFor(item, s.Rejectors, s.Pending, Waiting)
	case Backoff:
		q.putItem(item, Backoff)
		q.lines.addItem(item)
	default:
		q.putItem(item, Active)
		q.lines.addItem(item)
	}
}
