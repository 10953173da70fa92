// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// Evictions compares which pods are evicted for a taint, and when. It is not safe for concurrent
// use.
//
// The two sides are observed differently. Berth's decision is the deadline that the core computes
// from the actual cluster. The other controller's decision is a terminating pod with the mark of a
// taint eviction (DisruptionTarget). A pod terminating without that mark was deleted by another
// client, which does not count as a decision.
type Evictions struct {
	core   *eviction.Core
	ledger *Ledger
	pods   map[types.UID]*watched // pods that must be evicted, or have left
}

// watched is a pod that at least one side intends to evict, or that terminates.
type watched struct {
	name   types.NamespacedName
	due    eviction.Due // the deadline as last observed
	dueAt  time.Time    // time of the last observation of a due deadline; zero if it was never due
	left   time.Time    // time at which it was first observed as leaving; zero if it is not leaving
	marked bool         // marked by the other controller for a taint
	judged bool         // its departure has been judged
	gone   bool         // deleted from the API; dropped once it is judged
	missed bool         // it stayed beyond Patience, and has been counted
}

// NewEvictions returns an empty comparison.
func NewEvictions(ledger *Ledger, wall func(time.Time) time.Time) *Evictions {
	return &Evictions{
		core:   eviction.New(eviction.Options{Watches: true, Wall: wall}),
		ledger: ledger,
		pods:   map[types.UID]*watched{},
	}
}

// Step applies an event. For a deleted pod, PodSeen with its last state must precede PodGone.
func (e *Evictions) Step(now time.Time, event eviction.Event) {
	switch seen := event.(type) {
	case eviction.PodSeen:
		if seen.Pod.Terminating {
			e.noteLeaving(now, &seen.Pod)
		}
		// The core treats the pod as still running, because the deadline in the core is judged
		// later, after all watches have caught up.
		seen.Pod.Terminating = false
		event = seen
	case eviction.PodGone:
		if w := e.pods[seen.UID]; w != nil && !w.left.IsZero() {
			w.gone = true
			return
		}
		delete(e.pods, seen.UID)
	}
	e.core.Step(now, event)
	if _, tick := event.(eviction.Tick); tick {
		e.judgeDue(now)
	}
}

// watchPod returns the record of a pod, and begins it if needed.
func (e *Evictions) watchPod(pod *eviction.Pod) *watched {
	if e.pods[pod.UID] == nil {
		e.pods[pod.UID] = &watched{name: pod.Name}
	}
	return e.pods[pod.UID]
}

// noteLeaving records that a pod terminates. The mark may be observed later, until the pod is
// judged.
func (e *Evictions) noteLeaving(now time.Time, pod *eviction.Pod) {
	w := e.watchPod(pod)
	if w.left.IsZero() {
		w.left = now
	}
	w.marked = w.marked || pod.Marked
}

// judgeDue records the due pods, and judges all recorded pods.
func (e *Evictions) judgeDue(now time.Time) {
	for pod, due := range e.core.Going() {
		if !due.IsDue(now) {
			continue
		}
		w := e.watchPod(&pod)
		// Only an earlier event can be the reason for the pod's leaving.
		if w.left.IsZero() || !due.At.After(w.left.Add(Same)) {
			w.due, w.dueAt = due, now
		}
	}
	maps.DeleteFunc(e.pods, func(uid types.UID, w *watched) bool { return e.judgePod(now, uid, w) })
	e.ledger.setCount(Eviction, e.core.Pods())
}

// judgePod judges a pod, and reports whether it can be forgotten. A pod that has left is judged
// after the time Same, when the watches of both pods and nodes have delivered the cause.
func (e *Evictions) judgePod(now time.Time, uid types.UID, w *watched) bool {
	if w.left.IsZero() {
		return e.judgeThere(now, w)
	}
	if now.Before(w.left.Add(Same)) {
		return false
	}
	if !w.judged {
		w.judged = true
		e.judgeLeft(uid, w)
	}
	// The core forgets the pod only now, because the judgement needs the pod's deadline.
	if w.gone {
		e.core.Step(now, eviction.PodGone{Name: w.name, UID: uid})
	}
	return w.gone
}

// judgeThere judges a due pod that still exists.
func (e *Evictions) judgeThere(now time.Time, w *watched) bool {
	if w.dueAt.Before(now) { // no longer due, but the other controller may still act on an earlier observation
		return w.dueAt.Add(Same).Before(now)
	}
	if late := now.Sub(w.due.At); late >= Patience && !w.missed {
		w.missed = true
		e.ledger.addOneSided(e.newDecision(w, w.due.At, "evicted for "+w.due.Taint.ToString(), "still there"), OnlyBerth, late)
	}
	return false
}

// judgeLeft judges a pod that has left. A pod already counted as missed is not counted again. A pod
// that left without the mark counts for neither side, even if it was due.
func (e *Evictions) judgeLeft(uid types.UID, w *watched) {
	due := !w.dueAt.IsZero() && !w.dueAt.Add(Same).Before(w.left) && w.due.IsDue(w.left.Add(Same))
	switch {
	case w.missed:
	case due && w.marked:
		e.ledger.addBoth(e.newDecision(w, w.due.At, "evicted for "+w.due.Taint.ToString(), ""), w.left.Sub(w.due.At))
	// The other side has evicted the pod, although it was not due by the state known then. If the
	// pod becomes due later, the other side was early.
	case w.marked:
		if later, ok := e.core.Due(uid); ok && !later.Stays() {
			e.ledger.addBoth(e.newDecision(w, later.At, "evicted for "+later.Taint.ToString(), "too early"), w.left.Sub(later.At))
			return
		}
		e.ledger.addOneSided(e.newDecision(w, w.left, "evicted for a taint", "no taint requires it"), OnlyOther, 0)
	}
}

// newDecision returns a decision about the pod, for the ledger to complete.
func (e *Evictions) newDecision(w *watched, at time.Time, what, why string) Decision {
	return Decision{Kind: Eviction, Object: w.name.String(), What: what, At: at, Why: why}
}
