// Package agenda has what is to happen, by its time.
package agenda

import (
	"cmp"
	"container/heap"
	"time"
)

// Queue has what is due at a time, by it; of the same time, in the order in which it
// was added. The zero value is empty. It is a heap, so adding and taking cost the
// logarithm of its length. It is not safe for concurrent use.
type Queue[T any] struct {
	list  entries[T]
	added int // entries ever
}

// entry is a value of a queue. number decides between entries of the same time: a
// heap alone would give them in any order.
type entry[T any] struct {
	at     time.Time
	number int
	value  T
}

// Add has a value be due at a time, which may have passed: it is then the next to be
// taken.
func (q *Queue[T]) Add(at time.Time, value T) {
	q.added++
	heap.Push(&q.list, entry[T]{at, q.added, value})
}

// Len returns how many values there are.
func (q *Queue[T]) Len() int { return len(q.list) }

// Next returns when the first one is due; ok is false if there is none.
func (q *Queue[T]) Next() (at time.Time, ok bool) {
	if len(q.list) == 0 {
		return time.Time{}, false
	}
	return q.list[0].at, true
}

// Take removes the first one. There has to be one.
func (q *Queue[T]) Take() T { return heap.Pop(&q.list).(entry[T]).value }

// Agenda has calls by their time. The zero value is empty. It has no clock: whoever
// owns one says until when to run.
type Agenda struct{ Queue[func()] }

// RunUntil makes the calls up to a time, that time included, also those that are
// added meanwhile. passing, if not nil, is called before each of them with its time.
// A call that adds another one for the same time again and again never lets it
// return.
func (a *Agenda) RunUntil(end time.Time, passing func(now time.Time)) {
	for at, ok := a.Next(); ok && !at.After(end); at, ok = a.Next() {
		if passing != nil {
			passing(at)
		}
		a.RunFirst()
	}
}

// RunFirst makes the first call. There has to be one.
func (a *Agenda) RunFirst() { a.Take()() }

// entries are a heap by time and number.
type entries[T any] []entry[T]

func (e entries[T]) Len() int { return len(e) }

func (e entries[T]) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), cmp.Compare(e[i].number, e[j].number)) < 0
}

func (e entries[T]) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push and Pop are for package heap only.
func (e *entries[T]) Push(x any) { *e = append(*e, x.(entry[T])) }

// Pop takes the last one.
func (e *entries[T]) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
