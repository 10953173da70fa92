// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "k8s.io/apimachinery/pkg/types"

// Take takes a given pod, as Pop does, regardless of the events it waits for. It returns nil if the
// pod is gated or already Taken. Pods decided together are taken together.
func (q *Queue) Take(uid types.UID) *Item {
	item := q.items[uid]
	if item == nil || item.place == Taken || item.place == Gated {
		return nil
	}
	q.leavePlace(item)
	q.countWaiting(item, nil)
	item.Attempts++
	item.seen = q.happened.events
	return item
}

// Earlier reports whether the item was added before than.
func (i *Item) Earlier(than *Item) bool { return i.order < than.order }
