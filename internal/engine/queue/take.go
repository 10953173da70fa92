package queue

import "k8s.io/apimachinery/pkg/types"

// Take takes a pod as Pop does, whatever it waits for, unless a gate keeps it out or it was taken
// already; then it returns nil. Pods that are decided together are taken together.
func (q *Queue) Take(uid types.UID) *Item {
	item := q.items[uid]
	if item == nil || item.place == Taken || item.place == Gated {
		return nil
	}
	q.leave(item)
	q.count(item, nil)
	item.Attempts++
	item.seen = q.happened.events
	return item
}

// Earlier tells whether the item came into the queue before another one.
func (i *Item) Earlier(than *Item) bool { return i.order < than.order }
