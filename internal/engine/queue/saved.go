// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Saved is the queue's state of a pod, without its API state. The fields correspond to those of
// [Item]. Patient and Together are omitted: Patient is set when the pod is added, and Together is
// set by each attempt. Continued is reset to 0, since the partial results of attempts are in
// caches, which are not saved.
type Saved struct {
	UID        types.UID
	Place      Place
	Gate       string `json:",omitempty"`
	Since      time.Time
	Admitted   time.Time `json:",omitzero"`
	Unfit      time.Time `json:",omitzero"`
	Attempts   int       `json:",omitempty"`
	Rejected   int       `json:",omitempty"`
	Failed     int       `json:",omitempty"`
	Ready      time.Time `json:",omitzero"`
	Returned   time.Time
	Entered    time.Time         `json:",omitzero"`
	Rejectors  []string          `json:",omitempty"`
	Pending    []string          `json:",omitempty"`
	Counted    []string          `json:",omitempty"`
	Message    string            `json:",omitempty"`
	MessageAt  time.Time         `json:",omitzero"`
	Written    *WrittenCondition `json:"Told,omitempty"`
	Nominating *Nominating       `json:",omitempty"`
	Overdue    bool              `json:",omitempty"`
	Flushed    time.Time         `json:",omitzero"`
}

// Save returns the state of all pods, in arrival order. No pod may be Taken.
func (q *Queue) Save() (all []Saved) {
	all = make([]Saved, 0, len(q.items))
	for _, i := range q.Sorted() {
		all = append(all, Saved{
			UID: i.Pod.UID, Place: i.place, Gate: i.Gate, Since: i.Since, Admitted: i.Admitted, Unfit: i.Unfit, Attempts: i.Attempts,
			Rejected: i.rejected, Failed: i.failed, Ready: i.ready, Returned: i.returned, Entered: i.entered, Rejectors: i.Rejectors,
			Pending: i.Pending, Counted: i.counted, Message: i.Message, MessageAt: i.MessageAt, Written: i.Written, Nominating: i.Nominating,
			Overdue: i.Overdue, Flushed: i.flushed,
		})
	}
	return all
}

// Restore puts the pods into the places that they had in the saved queue. It wakes no pods, since
// the saved queue has handled all earlier events. Saved pods missing from this queue are skipped.
// Pods without a saved state are ordered after the restored pods.
func (q *Queue) Restore(all []Saved) {
	before := q.arrived
	for i := range all {
		item := q.items[all[i].UID]
		if item == nil || item.place == Taken || all[i].Place == Taken {
			continue
		}
		q.leavePlace(item)
		q.arrived++
		item.order = q.arrived
		q.restoreItem(item, &all[i])
	}

	others := q.SortedIf(func(item *Item) bool { return item.order <= before && item.place != Taken })
	for _, item := range others {
		q.arrived++
		item.order = q.arrived
	}

	// The order of items that are already in a heap may have changed.
	q.lines.rebuild()
}

// restoreItem puts a Taken item into its saved place. It does not run the gates, because the saved
// queue has already run them.
func (q *Queue) restoreItem(item *Item, s *Saved) {
	item.Since, item.Admitted, item.Unfit = s.Since, s.Admitted, s.Unfit
	item.Attempts, item.rejected, item.failed = s.Attempts, s.Rejected, s.Failed
	item.ready, item.returned, item.entered, item.Overdue = s.Ready, s.Returned, s.Entered, s.Overdue
	item.Rejectors, item.Pending, item.Message, item.MessageAt = s.Rejectors, s.Pending, s.Message, s.MessageAt
	item.Written, item.Nominating, item.flushed = s.Written, s.Nominating, s.Flushed
	q.countWaiting(item, s.Counted)

	switch s.Place {
	case Gated:
		item.Gate = s.Gate
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
