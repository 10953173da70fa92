// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package agenda keeps future events in order of time.
package agenda

import (
	"cmp"
	"container/heap"
	"time"
)

// Queue holds values in order of their due times, and of addition for equal times. The zero value
// is empty. It is a heap, so the cost of adding or taking a value is proportional to the logarithm
// of its length. It is not safe for concurrent use.
type Queue[T any] struct {
	list  entries[T]
	added int // total number of entries added
}

// entry is a value of a queue. number orders entries of the same time, which a heap would otherwise
// return in any order.
type entry[T any] struct {
	at     time.Time
	number int
	value  T
}

// Add adds a value due at a time. If the time has passed, the value is the next to be taken.
func (q *Queue[T]) Add(at time.Time, value T) {
	q.added++
	heap.Push(&q.list, entry[T]{at, q.added, value})
}

// Len returns the number of values.
func (q *Queue[T]) Len() int { return len(q.list) }

// Next returns the due time of the first value; ok is false for an empty queue.
func (q *Queue[T]) Next() (at time.Time, ok bool) {
	if len(q.list) == 0 {
		return time.Time{}, false
	}
	return q.list[0].at, true
}

// Take removes and returns the first value. The queue must not be empty.
func (q *Queue[T]) Take() T { return heap.Pop(&q.list).(entry[T]).value }

// Agenda holds calls in order of their times. The zero value is empty. It has no clock: its owner
// decides until which time to run.
type Agenda struct{ Queue[func()] }

// RunUntil runs the calls with times up to end, including calls added meanwhile. passing, if not
// nil, is called before each call with its time. RunUntil never returns if each call adds another
// call for the same time.
func (a *Agenda) RunUntil(end time.Time, passing func(now time.Time)) {
	for at, ok := a.Next(); ok && !at.After(end); at, ok = a.Next() {
		if passing != nil {
			passing(at)
		}
		a.RunFirst()
	}
}

// RunFirst runs the first call. The agenda must not be empty.
func (a *Agenda) RunFirst() { a.Take()() }

// entries are a heap by time and number.
type entries[T any] []entry[T]

func (e entries[T]) Len() int { return len(e) }

func (e entries[T]) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), cmp.Compare(e[i].number, e[j].number)) < 0
}

func (e entries[T]) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push appends an entry. It is only for package heap, like Pop.
func (e *entries[T]) Push(x any) { *e = append(*e, x.(entry[T])) }

// Pop removes and returns the last entry.
func (e *entries[T]) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
