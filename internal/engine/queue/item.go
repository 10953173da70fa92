// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Item is a pending pod with the queue's state of it. The exported fields are for the caller to
// read. It may set Message, MessageAt, Written, Nominating, Unfit, Patient and Together, and replace
// Pod by a fuller copy; Patient only outside of a back-off, since it determines the item's back-off
// heap.
type Item struct {
	Pod *v1.Pod
	// Class is the pod's form in decisions.
	Class *cluster.PodClass
	// Since is the time at which the pod was added to the queue.
	Since time.Time
	// Admitted is the time at which the pod first passed all gates.
	Admitted time.Time
	// Attempts counts how often the pod was popped.
	Attempts int
	// Rejectors are the plugins that rejected the pod in its last attempt. They are kept until the
	// next attempt is over.
	Rejectors []string
	// Pending are the rejectors that made the pod wait for one of their events.
	Pending []string
	// Gate is the plugin that keeps the pod out; empty unless the place is Gated.
	Gate string
	// Message is the reason why the pod is not scheduled, and MessageAt the time of the last event
	// for the user.
	Message   string
	MessageAt time.Time
	// Written is the condition of the latest decided write, or nil.
	Written *WrittenCondition
	// Nominating is the nominated node of the latest decided write; nil once the pod shows it.
	Nominating *Nominating
	// Overdue: the pod was woken because it had waited for too long, not by an event.
	Overdue bool
	// Unfit is the time at which the pod was first found unschedulable, or zero.
	Unfit time.Time
	// Patient: the pod backs off to the end even if the scheduler is idle.
	Patient bool
	// Together is the number of pods decided together in the last attempt, including this one; 0
	// counts as one. A larger number lengthens the longest back-off.
	Together int
	// Continued counts consecutive continuations of an unfinished attempt.
	Continued int

	place    Place
	group    *group       // where the place is Waiting or Gated
	entity   *groupEntity // the pod group's; nil if it is in none
	index    int          // in its heap or group
	order    uint64       // of arrival; unique
	rejected int          // how often it was rejected, for the back-off
	failed   int          // how many attempts in a row failed, for the back-off
	ready    time.Time
	returned time.Time // when it was added, or came back from its last attempt
	entered  time.Time // when it began to wait, or was gated
	flushed  time.Time // when it was last woken because it had waited for too long
	seen     uint64    // the newest event that the current attempt takes into account
	counted  []string  // the plugins for which Queue.Counted counts it
}

// Came increases with the order of arrival in the queue.
func (i *Item) Came() uint64 { return i.order }

// WrittenCondition is a condition decided to be written to a pod of this version. While the pod has
// this version, the write has not been observed. It keeps the same condition from being written
// twice while the watch lags behind.
type WrittenCondition struct {
	Version   string
	At        time.Time
	Condition v1.PodCondition
}

// Nominating is a node decided to be written to a pod as its nomination.
type Nominating struct {
	Node string
	At   time.Time
}

// Place is a location of items. The order is by progress: see groupEntity.findPlace.
type Place uint8

// The places.
const (
	Taken   Place = iota // being decided or bound
	Active               // may be decided
	Backoff              // will be active when the time is up
	Waiting              // for an event that can help
	Gated                // kept out
)

// String returns the name of a place in upstream's metrics.
func (p Place) String() string {
	return [...]string{"taken", "active", "backoff", "unschedulable", "gated"}[p]
}

// Place returns the item's current place.
func (i *Item) Place() Place { return i.place }

// Returned returns the time at which the item was added, or returned from its last attempt.
func (i *Item) Returned() time.Time { return i.returned }

// Ready returns the time at which the item's back-off ends or ended.
func (i *Item) Ready() time.Time { return i.ready }

// Entered returns the time at which the item began to wait for an event, or was gated.
func (i *Item) Entered() time.Time { return i.entered }

// Rejections counts the attempts that ended with a rejection.
func (i *Item) Rejections() int { return i.rejected }

// Errors counts the consecutive attempts that failed without a verdict.
func (i *Item) Errors() int { return i.failed }

// Limits of waiting, with upstream's values.
const (
	InitialBackoff = time.Second
	MaxBackoff     = 10 * time.Second
	MaxWait        = 5 * time.Minute
)

// backoffFor returns an item's back-off after a number of attempts. As upstream, the longest
// back-off of pods decided together grows with the square root of their number: each attempt costs
// other pods more, and should be made less often. With the default limits the back-off is 1 s, 2 s,
// 4 s, 8 s, and 10 s from then on; for 4 pods together, the longest is 20 s.
func (q *Queue) backoffFor(item *Item, times int) time.Duration {
	last := q.LastBackoff
	if item.Together > 1 {
		last = time.Duration(min(float64(last)*math.Sqrt(float64(item.Together)), 1<<62))
	}
	if q.FirstBackoff > last>>(times-1) { // doubled so often, it may be more than a Duration holds
		return last
	}
	return q.FirstBackoff << (times - 1)
}

// moreUrgent is the default order of active pods: by priority, then by the time of their addition
// or their return from the last attempt. Repeatedly failing pods thus do not delay the first
// attempt of other pods with the same priority.
func moreUrgent(a, b *Item) bool {
	if p, q := priorityOf(a.Pod), priorityOf(b.Pod); p != q {
		return p > q
	}
	return a.returned.Before(b.returned)
}

// priorityOf returns 0 for a pod without a priority, as upstream.
func priorityOf(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}
