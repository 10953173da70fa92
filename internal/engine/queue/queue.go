package queue

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Queue holds the pods that wait. See New.
type Queue struct {
	// FirstBackoff and LastBackoff are the shortest and the longest back-off; MaxWait is the
	// longest that a pod waits for an event.
	FirstBackoff, LastBackoff, MaxWait time.Duration
	// Admit, if set, names the plugin that keeps the pod out, or is empty. It is asked whenever a
	// pod would come in.
	Admit func(*Item) (gate string)
	// Admitted, if set, is told of a pod that comes past all gates for the first time.
	Admitted func(*Item)
	// Moved, if set, is told of every pod that comes to a place and the label of the event that
	// brought it there.
	Moved func(item *Item, label string)
	// Counted, if set, is told that one pod more or fewer is kept by a plugin.
	Counted func(plugin, schedulerName string, delta int)

	// Asked, if set, is told of every hint.
	Asked Asked

	items   map[types.UID]*Item
	active  ordered
	backing ordered // those that back off after a rejection
	erring  ordered // those that back off after an attempt that went wrong
	groups  groups
	counts  [Gated + 1]int
	arrived uint64

	interests map[string]Interests // by scheduler name
	happened  history
}

// New returns an empty queue with upstream's limits.
func New() *Queue {
	q := &Queue{
		FirstBackoff: InitialBackoff, LastBackoff: MaxBackoff, MaxWait: MaxWait,
		items: map[types.UID]*Item{}, interests: map[string]Interests{}, groups: newGroups(),
		erring: ordered{before: func(a, b *Item) bool { return a.ready.Before(b.ready) }},
	}
	q.OrderBy(nil)
	return q
}

// OrderBy sets the order of active pods; nil is priority, then age.
func (q *Queue) OrderBy(less func(a, b *Item) bool) {
	if less == nil {
		less = moreUrgent
	}
	q.active.before = func(a, b *Item) bool {
		if less(a, b) {
			return true
		}
		return !less(b, a) && a.order < b.order
	}
	q.active.reorder()
	q.backing.before = func(a, b *Item) bool {
		if w, v := a.ready.Truncate(window), b.ready.Truncate(window); !w.Equal(v) {
			return w.Before(v)
		}
		return q.active.before(a, b)
	}
	q.backing.reorder()
}

// window is how long back-offs end together: within it, what is more urgent goes first, as
// upstream.
const window = time.Second

// SetInterests says what can help pods of a scheduler name. Pods that wait are asked about by the
// new word from now on.
func (q *Queue) SetInterests(schedulerName string, interests Interests) {
	q.interests[schedulerName] = interests
	for _, item := range q.Sorted() {
		if item.group != nil && item.Pod.Spec.SchedulerName == schedulerName {
			rejectors, pending := item.group.rejectors, item.group.pending
			q.groups.remove(item)
			q.groups.add(item, rejectors, pending, interests)
		}
	}
}

// Add takes in a pod that was not known.
func (q *Queue) Add(pod *v1.Pod, class *cluster.PodClass, now time.Time) *Item {
	q.arrived++
	item := &Item{Pod: pod, Class: class, Since: now, returned: now, order: q.arrived}
	q.items[pod.UID] = item
	q.counts[Taken]++
	q.enter(item, Appeared, now)
	return item
}

// Update takes note of a pod's newest state; actions is what of it can matter. A pod that waits is
// tried again if that can help.
func (q *Queue) Update(item *Item, pod *v1.Pod, class *cluster.PodClass, actions Action, now time.Time) {
	old := item.Pod
	item.Pod = pod
	if item.Class != class {
		item.Class = class
		if item.group != nil {
			q.groups.regroup(item)
		}
	}
	event := &Event{Resource: Pod, Action: actions, Label: Changed, Old: old, New: pod, Own: item}
	switch item.place {
	case Active:
		q.active.fix(item.index)
	case Taken: // if it is rejected, this may help
		if actions != 0 {
			q.happened.note(event, true)
		}
	case Gated, Waiting:
		if actions != 0 {
			q.help(item, item.group.helped(item, event, q.Asked), Changed, now)
		}
	}
}

// Remove forgets a pod.
func (q *Queue) Remove(uid types.UID) {
	if item, ok := q.items[uid]; ok {
		q.leave(item)
		q.count(item, nil)
		q.counts[Taken]--
		delete(q.items, uid)
	}
}

// Get returns the item of a pod, or nil.
func (q *Queue) Get(uid types.UID) *Item { return q.items[uid] }

// Len returns how many pods are in a place.
func (q *Queue) Len(p Place) int { return q.counts[p] }

// Each yields all items in no order.
func (q *Queue) Each(yield func(*Item) bool) {
	for _, item := range q.items {
		if !yield(item) {
			return
		}
	}
}

// Sorted returns all items in the order in which they came.
func (q *Queue) Sorted() []*Item {
	return slices.SortedFunc(q.Each, func(a, b *Item) int { return cmp.Compare(a.order, b.order) })
}

// Pop takes the most urgent active pod. If there is none, it does not stay idle: it takes one that
// was rejected before its back-off is over, as upstream since v1.33 (SchedulerPopFromBackoffQ).
// Pods whose attempts went wrong back off to the end: what went wrong may need the rest.
func (q *Queue) Pop(now time.Time) *Item {
	item := q.Next(now)
	if item == nil {
		return nil
	}
	q.leave(item)
	q.count(item, nil)
	item.Attempts++
	item.seen = q.happened.events
	return item
}

// Next is the pod that Pop would take.
func (q *Queue) Next(now time.Time) *Item {
	q.advance(now)
	switch {
	case q.active.Len() > 0:
		return q.active.items[0]
	case q.backing.Len() > 0:
		return q.backing.items[0]
	}
	return nil
}

// Held says that the pod has been put on a node, but that a plugin may still reject it: what
// happens from now on is to be taken into account if it does.
func (q *Queue) Held(item *Item) { item.seen = q.happened.events }

// Rejected puts a pod that fits nowhere where it waits for what can help against the plugins that
// rejected it. If that has happened while it was decided, it is tried again after its back-off.
// pending are those of the plugins that asked it to wait: what they wait for ends its back-off.
func (q *Queue) Rejected(item *Item, rejectors, pending []string, now time.Time) {
	if !q.returned(item) {
		return
	}
	item.rejected++
	item.failed, item.returned = 0, now
	item.ready = now.Add(q.backoff(item.rejected))
	item.Rejectors, item.Pending, item.entered, item.Overdue = rejectors, pending, now, false
	q.count(item, rejectors)
	q.wait(item, rejectors, pending, Waiting)
	if !q.help(item, item.group.missed(item, &q.happened, item.seen, q.Asked), AttemptFailed, now) {
		q.tell(item, AttemptFailed)
	}
}

// Failed puts back a pod whose attempt went wrong for a reason of its own: an API error, a node
// that vanished.
func (q *Queue) Failed(item *Item, now time.Time) {
	if !q.returned(item) {
		return
	}
	item.failed++
	item.returned = now
	item.ready = now.Add(q.backoff(item.failed))
	item.Rejectors, item.Pending, item.Overdue = nil, nil, false
	q.enter(item, AttemptFailed, now)
}

// returned tells whether the item is still the queue's: the pod may have been removed while it was
// decided.
func (q *Queue) returned(item *Item) bool {
	return q.items[item.Pod.UID] == item && item.place == Taken
}

// Happened wakes the pods that an event can help.
func (q *Queue) Happened(event *Event, now time.Time) {
	q.happened.note(event, q.counts[Taken] > 0)
	q.groups.each(event, q.Asked, func(item *Item, h help) { q.help(item, h, event.Label, now) })
}

// Activate lets a pod that waits or backs off be tried at once, whatever it waits for, unless a
// gate keeps it out.
func (q *Queue) Activate(uid types.UID, now time.Time) {
	item, ok := q.items[uid]
	if !ok || item.place == Taken || item.place == Active {
		return
	}
	item.ready = now
	q.wake(item, ForceActivate, now)
}

// Wake has a pod tried again after its back-off.
func (q *Queue) Wake(uid types.UID, label string, now time.Time) {
	if item, ok := q.items[uid]; ok && item.group != nil {
		q.wake(item, label, now)
	}
}

// Retry has a pod tried again whose rejection was to be helped, which then went wrong: it backs off
// to the end.
func (q *Queue) Retry(uid types.UID, label string, now time.Time) {
	item, ok := q.items[uid]
	if !ok || item.group == nil || item.place == Gated && q.gate(item) == item.Gate {
		return
	}
	q.leave(item)
	item.failed++
	q.enter(item, label, now)
}

// Flush wakes the pods that have waited for too long, in case an event was missed or a plugin is
// not told of what would help it. A pod that is kept out stays out, unless its plugin is to be
// asked about whatever happens.
func (q *Queue) Flush(now time.Time) {
	var overdue []*Item
	for _, item := range q.items {
		if now.Sub(item.returned) >= q.MaxWait && (item.place == Waiting || item.place == Gated && item.group.hasWildcard()) {
			overdue = append(overdue, item)
		}
	}
	slices.SortFunc(overdue, func(a, b *Item) int { return cmp.Compare(a.order, b.order) })
	for _, item := range overdue {
		item.Overdue = true
		q.wake(item, WaitedForTooLong, now)
		item.Overdue = item.place != Gated
	}
}

// NextReady returns from when on Pop returns a pod, if nothing happens; zero is at once.
func (q *Queue) NextReady() (at time.Time, ok bool) {
	switch {
	case q.active.Len()+q.backing.Len() > 0:
		return time.Time{}, true
	case q.erring.Len() > 0:
		return q.erring.items[0].ready, true
	}
	return time.Time{}, false
}
