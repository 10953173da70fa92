// Package agenda has what is to happen in virtual time.
package agenda

import (
	"cmp"
	"container/heap"
	"time"
)

// Agenda has calls by their time. Those of the same time are made in the order in which they were
// added. The zero value is empty.
type Agenda struct {
	calls calls
	added int // calls ever
}

type call struct {
	at     time.Time
	number int
	do     func()
}

// Add has a call made at a time.
func (a *Agenda) Add(at time.Time, do func()) {
	a.added++
	heap.Push(&a.calls, call{at, a.added, do})
}

// Len returns how many calls are to be made.
func (a *Agenda) Len() int { return len(a.calls) }

// Next returns when the first call is to be made.
func (a *Agenda) Next() (at time.Time, ok bool) {
	if len(a.calls) == 0 {
		return time.Time{}, false
	}
	return a.calls[0].at, true
}

// RunUntil makes the calls up to a time, also those that are added meanwhile. passing, if not nil,
// is called before each of them with its time.
func (a *Agenda) RunUntil(end time.Time, passing func(now time.Time)) {
	for len(a.calls) > 0 && !a.calls[0].at.After(end) {
		if passing != nil {
			passing(a.calls[0].at)
		}
		a.RunFirst()
	}
}

// RunFirst makes the first call. There has to be one.
func (a *Agenda) RunFirst() { heap.Pop(&a.calls).(call).do() }

// calls are a heap by time and number.
type calls []call

func (c calls) Len() int { return len(c) }

func (c calls) Less(i, j int) bool {
	return cmp.Or(c[i].at.Compare(c[j].at), cmp.Compare(c[i].number, c[j].number)) < 0
}

func (c calls) Swap(i, j int) { c[i], c[j] = c[j], c[i] }

// Push and Pop are for package heap.
func (c *calls) Push(x any) { *c = append(*c, x.(call)) }

// Pop takes the last one.
func (c *calls) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}
