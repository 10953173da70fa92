// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import "container/heap"

// deadlines holds the pods with a deadline.
//
// A pod is in queue exactly while it has a deadline, is not observed as terminating, and is not
// held by an attempt; pending counts it while it has a deadline, even during an attempt. Any code
// changing a pod's deadline or back-off calls enqueuePod afterwards, which restores both the order
// of the heap and the membership.
type deadlines struct {
	out *outbox

	queue     queue
	pending   map[string]int // pods with a deadline, by taint key and effect
	cancelled int            // Stats.Cancelled
}

// setDue changes the pod's deadline. The caller must then call enqueuePod or leaveQueue.
func (d *deadlines) setDue(p *pod, due Due) {
	if !p.Due.Stays() {
		key := taintLabel(p.Due)
		if d.pending[key]--; d.pending[key] == 0 {
			delete(d.pending, key)
		}
	}
	if !due.Stays() {
		d.pending[taintLabel(due)]++
		p.Device = due.OfDevice()
	}
	p.Due = due
}

// taintLabel identifies a taint by key and effect. Values are omitted, because users may choose any
// number of them.
func taintLabel(d Due) string { return d.Taint.Key + ":" + string(d.Taint.Effect) }

// cancelEviction counts the cancellation and records an event.
func (d *deadlines) cancelEviction(p *pod) {
	p.Cancels, p.Recorded = false, false
	d.cancelled++
	d.out.add(Record{Name: p.Name, UID: p.UID, Cancels: true, Device: p.Device})
}

// enqueuePod moves the pod to the place given by its deadline and back-off, or removes it if it has
// no deadline or is held by an attempt.
func (d *deadlines) enqueuePod(p *pod) {
	switch {
	case p.Due.Stays() || p.attempt != nil:
		d.leaveQueue(p)
	case p.place < 0:
		heap.Push(&d.queue, p)
	default:
		heap.Fix(&d.queue, p.place)
	}
}

// leaveQueue removes the pod, if it is queued.
func (d *deadlines) leaveQueue(p *pod) {
	if p.place >= 0 {
		heap.Remove(&d.queue, p.place)
	}
}

// queue is a heap of pods by the time of their next attempt.
type queue []*pod

// Len, Less, Swap, Push and Pop implement heap.Interface. Each pod records its index, so that it
// can be moved or removed without a search.
func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	a, b := q[i].nextAttempt(), q[j].nextAttempt()
	return a.Before(b) || a.Equal(b) && q[i].Number < q[j].Number
}
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}
func (q *queue) Push(x any) {
	x.(*pod).place = len(*q)
	*q = append(*q, x.(*pod))
}
func (q *queue) Pop() any {
	old := *q
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	p.place = -1
	return p
}
