package queue

import (
	"container/heap"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Item is a pod that waits for a node.
type Item struct {
	Pod *v1.Pod
	// Since is when the pod was first seen waiting: its age in the queue.
	Since time.Time
	// Attempts counts how often the pod was taken from the queue.
	Attempts int
	// Rejectors are the plugins that rejected the pod last.
	Rejectors []string

	place   place
	failed  int       // attempts that failed, for the back-off
	ready   time.Time // end of the back-off
	entered time.Time // when it began to wait
	index   int       // in its heap
}

// place is where an item is.
type place uint8

const (
	taken place = iota // being decided or bound
	active
	backingOff
	waiting
)

func (p place) String() string { return [...]string{"taken", "active", "backoff", "unschedulable"}[p] }

// Limits of waiting, as upstream's.
const (
	InitialBackoff = time.Second
	MaxBackoff     = 10 * time.Second
	MaxWait        = 5 * time.Minute
)

// Queue holds the pods that wait. The zero value is not ready; see New.
type Queue struct {
	items   map[types.UID]*Item
	active  ordered
	backoff ordered
	waiting map[types.UID]*Item
}

// New returns an empty queue.
func New() *Queue {
	return &Queue{
		items:   map[types.UID]*Item{},
		waiting: map[types.UID]*Item{},
		active:  ordered{before: moreUrgent},
		backoff: ordered{before: func(a, b *Item) bool { return a.ready.Before(b.ready) }},
	}
}

func moreUrgent(a, b *Item) bool {
	if p, q := priority(a.Pod), priority(b.Pod); p != q {
		return p > q
	}
	return a.Since.Before(b.Since)
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// Set adds a pod, or takes note of its newest state. A pod that waits and has changed may be tried again at once.
func (q *Queue) Set(pod *v1.Pod, changed bool, now time.Time) {
	item, known := q.items[pod.UID]
	if !known {
		item = &Item{Pod: pod, Since: now}
		q.items[pod.UID] = item
		q.activate(item)
		return
	}
	item.Pod = pod
	switch {
	case item.place == active:
		heap.Fix(&q.active, item.index)
	case item.place == waiting && changed:
		q.wake(item, now)
	}
}

// Remove forgets a pod.
func (q *Queue) Remove(uid types.UID) {
	if item, ok := q.items[uid]; ok {
		q.leave(item)
		delete(q.items, uid)
	}
}

// Get returns the item of a pod, or nil.
func (q *Queue) Get(uid types.UID) *Item { return q.items[uid] }

// Pop takes the most urgent active pod, or returns nil.
func (q *Queue) Pop(now time.Time) *Item {
	q.advance(now)
	if q.active.Len() == 0 {
		return nil
	}
	item := q.active.items[0]
	q.leave(item)
	item.Attempts++
	return item
}

// Rejected puts a pod that fits nowhere where it waits for what can help against the plugins that rejected it.
func (q *Queue) Rejected(item *Item, rejectors []string, now time.Time) {
	if !q.returned(item) {
		return
	}
	item.Rejectors, item.entered = rejectors, now
	q.fail(item, now)
	item.place = waiting
	q.waiting[item.Pod.UID] = item
}

// Failed puts back a pod whose attempt went wrong for a reason of its own: an API error, a node that vanished.
func (q *Queue) Failed(item *Item, now time.Time) {
	if !q.returned(item) {
		return
	}
	item.Rejectors = nil
	q.fail(item, now)
	q.wake(item, now)
}

// returned tells whether the item is still the queue's: the pod may have been removed while it was decided.
func (q *Queue) returned(item *Item) bool {
	return q.items[item.Pod.UID] == item && item.place == taken
}

func (q *Queue) fail(item *Item, now time.Time) {
	delay := InitialBackoff << min(item.failed, 4)
	item.failed++
	item.ready = now.Add(min(delay, MaxBackoff))
}

// Happened wakes the pods that an event can help.
func (q *Queue) Happened(event Event, now time.Time) {
	for _, item := range q.waiting {
		if event.helps(item.Rejectors) {
			q.wake(item, now)
		}
	}
}

// wake makes a waiting pod active, when its back-off is over.
func (q *Queue) wake(item *Item, now time.Time) {
	delete(q.waiting, item.Pod.UID)
	if item.ready.After(now) {
		item.place = backingOff
		heap.Push(&q.backoff, item)
		return
	}
	q.activate(item)
}

func (q *Queue) activate(item *Item) {
	item.place = active
	heap.Push(&q.active, item)
}

// leave takes an item out of the heap that it is in.
func (q *Queue) leave(item *Item) {
	switch item.place {
	case active:
		heap.Remove(&q.active, item.index)
	case backingOff:
		heap.Remove(&q.backoff, item.index)
	case waiting:
		delete(q.waiting, item.Pod.UID)
	}
	item.place = taken
}

// advance moves what is due by now.
func (q *Queue) advance(now time.Time) {
	for q.backoff.Len() > 0 && !q.backoff.items[0].ready.After(now) {
		item := q.backoff.items[0]
		q.leave(item)
		q.activate(item)
	}
}

// Flush wakes the pods that have waited for too long, in case an event was missed or a plugin is not told of what would help it.
func (q *Queue) Flush(now time.Time) {
	for _, item := range q.waiting {
		if now.Sub(item.entered) >= MaxWait {
			q.wake(item, now)
		}
	}
}

// NextReady returns when the next back-off ends.
func (q *Queue) NextReady() (at time.Time, ok bool) {
	if q.backoff.Len() == 0 {
		return time.Time{}, false
	}
	return q.backoff.items[0].ready, true
}

// Check returns an error if a pod is in no place or in two; tests call it after every step.
func (q *Queue) Check() error {
	for _, h := range []*ordered{&q.active, &q.backoff} {
		for i, item := range h.items {
			if item.index != i || q.items[item.Pod.UID] != item {
				return fmt.Errorf("pod %s is in a heap but not in the queue", item.Pod.UID)
			}
		}
	}
	for uid, item := range q.items {
		inActive := item.index < q.active.Len() && item.index >= 0 && q.active.items[item.index] == item
		inBackoff := item.index < q.backoff.Len() && item.index >= 0 && q.backoff.items[item.index] == item
		inWaiting := q.waiting[uid] == item
		if (item.place == active) != inActive || (item.place == backingOff) != inBackoff || (item.place == waiting) != inWaiting {
			return fmt.Errorf("pod %s says that it is %s; active: %t, backing off: %t, waiting: %t", uid, item.place, inActive, inBackoff, inWaiting)
		}
	}
	return nil
}

// ordered is a heap of items.
type ordered struct {
	items  []*Item
	before func(a, b *Item) bool
}

func (o *ordered) Len() int           { return len(o.items) }
func (o *ordered) Less(i, j int) bool { return o.before(o.items[i], o.items[j]) }
func (o *ordered) Swap(i, j int) {
	o.items[i], o.items[j] = o.items[j], o.items[i]
	o.items[i].index, o.items[j].index = i, j
}
func (o *ordered) Push(x any) {
	item := x.(*Item)
	item.index = len(o.items)
	o.items = append(o.items, item)
}
func (o *ordered) Pop() any {
	last := len(o.items) - 1
	item := o.items[last]
	o.items[last] = nil
	o.items = o.items[:last]
	item.index = -1
	return item
}
