// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Item is a pending pod, or a placed pod with a deferred resize, with its state in the queue. The
// caller may read the exported fields. It may set Message, MessageAt, Written, Nominating, Unfit,
// Patient and Together, and replace Pod by a fuller copy. It may set Patient only outside of a
// back-off, since Patient determines the item's back-off heap.
type Item struct {
	Progress
	Pod *v1.Pod
	// Class is the pod class used in decisions.
	Class *cluster.PodClass
	// Patient pods complete their back-off even if the scheduler is idle.
	Patient bool
	// Together is the number of pods decided together in the last attempt, including this one; 0
	// counts as one. A larger number lengthens the maximum back-off.
	Together int
	// Continued counts consecutive continuations of an unfinished attempt.
	Continued int

	place  Place
	group  *group       // group of a Waiting or Gated item; nil in other places
	entity *groupEntity // entity of the pod group; nil for an ungrouped pod
	index  int          // position in its heap or group
	order  uint64       // arrival order; unique
	seen   uint64       // number of the newest event taken into account by the current attempt
}

// Progress is the part of an item's state that [Saved] stores unchanged.
type Progress struct {
	// Gate is the plugin that gates the pod; empty unless the place is Gated.
	Gate string `json:",omitempty"`
	// Since is the time at which the pod was added to the queue.
	Since time.Time
	// Admitted is the time at which the pod first passed all gates.
	Admitted time.Time `json:",omitzero"`
	// Unfit is the time at which the pod was first found unschedulable, or zero.
	Unfit time.Time `json:",omitzero"`
	// Attempts is the number of times the pod was popped.
	Attempts int `json:",omitempty"`
	// Rejected counts the attempts that ended with a rejection, and Failed the consecutive attempts
	// that failed without a verdict, both for the back-off.
	Rejected int `json:",omitempty"`
	Failed   int `json:",omitempty"`
	// ReadyAt is the time at which the back-off ends or ended.
	ReadyAt time.Time `json:"Ready,omitzero"`
	// Returned is the time of the addition, or of the return from the last attempt.
	Returned time.Time
	// EnteredAt is the time at which the item began to wait for an event, or was gated.
	EnteredAt time.Time `json:"Entered,omitzero"`
	// Rejectors are the plugins that rejected the pod in its last attempt. They are kept until the
	// next attempt is over.
	Rejectors []string `json:",omitempty"`
	// Pending are the rejectors that made the pod wait for one of their events.
	Pending []string `json:",omitempty"`
	// Counted are the plugins for which Queue.Counted counts the item.
	Counted []string `json:",omitempty"`
	// Message is the reason why the pod is not scheduled, and MessageAt is the time of the last
	// Kubernetes Event recorded for the pod.
	Message   string    `json:",omitempty"`
	MessageAt time.Time `json:",omitzero"`
	// Written is the last condition for which a write was requested, or nil.
	Written *WrittenCondition `json:"Told,omitempty"`
	// Nominating is the last nomination for which a write was requested; nil once a watch shows it
	// on the pod.
	Nominating *Nominating `json:",omitempty"`
	// Overdue reports that the pod was woken after the maximum wait, not by an event.
	Overdue bool `json:",omitempty"`
	// Flushed is the time of the last wake-up after the maximum wait.
	Flushed time.Time `json:",omitzero"`
}

// Resizes reports whether the pod is on its node, which has deferred a resize of the pod. All other
// items are pods without a node.
func (i *Item) Resizes() bool { return i.Pod.Spec.NodeName != "" }

// Came returns the item's arrival number. Later items have higher numbers.
func (i *Item) Came() uint64 { return i.order }

// WrittenCondition is a condition to be written to a pod, with the resource version of the pod at
// the time of the decision. While the pod still has this version, the write has not been observed.
// The record prevents writing the same condition twice while the watch lags behind.
type WrittenCondition struct {
	Version   string
	At        time.Time
	Condition v1.PodCondition
}

// Nominating is a decided nomination of a pod and the time of the decision.
type Nominating struct {
	Node string
	At   time.Time
}

// Place is the state of an item in the queue. The places are ordered by progress; see
// groupEntity.findPlace.
type Place uint8

// The places.
const (
	Taken   Place = iota // being decided or bound
	Active               // ready to be decided
	Backoff              // becomes active when the back-off ends
	Waiting              // waiting for an event that can help
	Gated                // rejected by a gate
)

// String returns the name of a place in upstream's metrics.
func (p Place) String() string {
	return [...]string{"taken", "active", "backoff", "unschedulable", "gated"}[p]
}

// Place returns the item's current place.
func (i *Item) Place() Place { return i.place }

// Ready returns the time at which the item's back-off ends or ended.
func (i *Item) Ready() time.Time { return i.ReadyAt }

// Entered returns the time at which the item began to wait for an event, or was gated.
func (i *Item) Entered() time.Time { return i.EnteredAt }

// Limits of waiting, with upstream's values.
const (
	InitialBackoff = time.Second
	MaxBackoff     = 10 * time.Second
	MaxWait        = 5 * time.Minute
)

// moreUrgent is the default order of active pods: by priority, then by the time at which the pod
// was added or returned from its last attempt. Repeatedly failing pods thus do not delay the first
// attempt of other pods with the same priority.
func moreUrgent(a, b *Item) bool {
	if p, q := rules.Priority(a.Pod), rules.Priority(b.Pod); p != q {
		return p > q
	}
	return a.Returned.Before(b.Returned)
}
