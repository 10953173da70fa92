package queue

import (
	"container/heap"
	"fmt"
	"slices"
	"time"
)

// wake moves an item that waits, backs off or is gated to where it belongs now.
func (q *Queue) wake(item *Item, label string, now time.Time) {
	if item.place == Gated && q.gate(item) == item.Gate {
		return // it stays where it is
	}
	q.leave(item)
	q.enter(item, label, now)
}

// help wakes an item if an event can help it, and reports whether it did.
func (q *Queue) help(item *Item, h help, label string, now time.Time) (woken bool) {
	if h == atOnce {
		item.ready = now
	}
	if h != nothing {
		q.wake(item, label, now)
	}
	return h != nothing
}

func (q *Queue) gate(item *Item) string {
	if q.Admit == nil {
		return ""
	}
	return q.Admit(item)
}

// enter puts an item that is Taken into the place where it belongs: gated, backing off, or active.
func (q *Queue) enter(item *Item, label string, now time.Time) {
	if item.Gate = q.gate(item); item.Gate != "" {
		item.entered = now
		q.count(item, withName(item.Rejectors, item.Gate))
		q.wait(item, []string{item.Gate}, nil, Gated)
		q.tell(item, label)
		return
	}

	if item.Admitted.IsZero() {
		item.Admitted = now
		if q.Admitted != nil {
			q.Admitted(item)
		}
	}

	if item.ready.After(now) {
		q.put(item, Backoff)
		heap.Push(q.backoffOf(item), item)
	} else {
		q.put(item, Active)
		heap.Push(&q.active, item)
	}
	q.tell(item, label)
}

// withName returns the names and another one, each once.
func withName(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(slices.Clip(names), name)
}

// wait adds an item to the group that waits for what can help against these plugins.
func (q *Queue) wait(item *Item, plugins, pending []string, place Place) {
	q.put(item, place)
	q.groups.add(item, plugins, pending, q.interests[item.Pod.Spec.SchedulerName])
}

// leave takes an item out of its place.
func (q *Queue) leave(item *Item) {
	switch item.place {
	case Active:
		heap.Remove(&q.active, item.index)
	case Backoff:
		heap.Remove(q.backoffOf(item), item.index)
	case Waiting, Gated:
		q.groups.remove(item)
		item.Gate = ""
	}
	q.put(item, Taken)
}

func (q *Queue) put(item *Item, place Place) {
	q.counts[item.place]--
	q.counts[place]++
	item.place = place
}

func (q *Queue) tell(item *Item, label string) {
	if q.Moved != nil {
		q.Moved(item, label)
	}
}

// count counts an item as kept waiting by these plugins, and no longer by others.
func (q *Queue) count(item *Item, plugins []string) {
	if q.Counted != nil {
		for _, name := range item.counted {
			q.Counted(name, item.Pod.Spec.SchedulerName, -1)
		}
		for _, name := range plugins {
			q.Counted(name, item.Pod.Spec.SchedulerName, 1)
		}
	}
	item.counted = plugins
}

// advance moves the items whose back-off is over.
func (q *Queue) advance(now time.Time) {
	for _, from := range []*ordered{&q.backing, &q.erring} {
		for from.Len() > 0 && !from.items[0].ready.After(now) {
			item := from.items[0]
			q.leave(item)
			q.enter(item, BackoffComplete, now)
		}
	}
}

// backoffOf returns the heap in which an item backs off. It does not change before the item's next
// attempt.
func (q *Queue) backoffOf(item *Item) *ordered {
	if item.failed > 0 || item.Patient {
		return &q.erring
	}
	return &q.backing
}

// Check returns an error if the queue's invariant does not hold. Tests call it after every step.
func (q *Queue) Check() error {
	seen := map[*Item]Place{}
	note := func(item *Item, place Place) error {
		if q.items[item.Pod.UID] != item {
			return fmt.Errorf("pod %s is in a place but not in the queue", item.Pod.UID)
		}
		if other, twice := seen[item]; twice {
			return fmt.Errorf("pod %s is in two places, %s and %s", item.Pod.UID, other, place)
		}
		seen[item] = place
		return nil
	}
	var err error
	for h, place := range map[*ordered]Place{&q.active: Active, &q.backing: Backoff, &q.erring: Backoff} {
		for i, item := range h.items {
			if item.index != i {
				err = fmt.Errorf("pod %s has a wrong index", item.Pod.UID)
			}
			if e := note(item, place); e != nil {
				err = e
			}
		}
	}
	for key, g := range q.groups.byKey {
		for i, item := range g.items {
			if item.index != i || item.group != g || key.class != item.Class {
				err = fmt.Errorf("pod %s is in a group that is not its own", item.Pod.UID)
			}
			if e := note(item, item.place); e != nil {
				err = e
			}
		}
	}
	var counts [Gated + 1]int
	for uid, item := range q.items {
		counts[item.place]++
		if seen[item] != item.place { // the place of those that are nowhere is Taken
			err = fmt.Errorf("pod %s says that it is %s, but is %s", uid, item.place, seen[item])
		}
		if (item.Gate != "") != (item.place == Gated) {
			err = fmt.Errorf("pod %s is %s with gate %q", uid, item.place, item.Gate)
		}
	}
	if counts != q.counts {
		err = fmt.Errorf("counted %v, want %v", q.counts, counts)
	}
	return err
}
