// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/response"
)

const (
	// heartbeatDeadline is defined by the API: a responder without a heartbeat for that long loses
	// its turn.
	heartbeatDeadline = 20 * time.Minute
	// heartbeatEvery is the interval between Berth's heartbeats. messageEvery is the minimum
	// interval between updates of its message. The API allows one heartbeat per 20 s.
	heartbeatEvery = 5 * time.Minute
	messageEvery   = 20 * time.Second
	// completesWithin is the time for a responder to report completion after its pod was deleted.
	completesWithin = 5 * time.Second
	longestMessage  = 4000 // limit of the API
)

const (
	evictedText   = "the pod is being deleted"
	goneText      = "the pod is gone"
	endedText     = "the pod has ended"
	withdrawnText = "no EvictionRequest requests the eviction of the pod"
)

// progress returns the Eviction with its next status, or nil if the status is current. Each call
// takes one step of the protocol, so that the API server can validate each: no active responder ->
// the first responder active -> ... -> a final condition.
func (c *Core) progress(t *target, e *lifecyclev1alpha1.Eviction) *lifecyclev1alpha1.Eviction {
	next := e.DeepCopy()
	s := &next.Status
	s.ObservedGeneration = ptr.To(max(1, e.Generation))
	s.Requesters = t.requesters(&e.Status)
	s.TargetResponders = t.responders(&e.Status)

	_, over := t.over()
	switch active := activeOf(s); {
	// The first step lists all responders and activates the first one.
	case len(s.Responders) == 0 && !over && t.wanted() && t.invalid() == "":
		for _, r := range s.TargetResponders {
			s.Responders = append(s.Responders, lifecyclev1alpha1.ResponderStatus{Name: r.Name})
		}
		c.activate(next, 0)
	case len(s.Responders) == 0: // withdrawn or deleted before the first turn
		s.TargetResponders = nil
		c.conclude(t, next, "")
	// No responder is active, and the Eviction has no final condition: it ends now.
	case active == nil:
		c.conclude(t, next, "")
	case over:
		c.completeGone(t, next, active)
	case !t.wanted():
		c.conclude(t, next, lifecyclev1alpha1.ResponderStateCanceled)
	default:
		c.followActive(t, next, active)
	}

	if equality.Semantic.DeepEqual(e.Status, *s) {
		return nil
	}
	return next
}

// activate gives a responder its turn. The turn starts now: a silent responder loses it
// heartbeatDeadline later.
func (c *Core) activate(next *lifecyclev1alpha1.Eviction, turn int) {
	active := &next.Status.TargetResponders[turn]
	active.State = lifecyclev1alpha1.ResponderStateActive
	status := statusOf(&next.Status, active.Name)
	status.StartTime = c.stamp()
	c.setConditions(next, lifecyclev1alpha1.EvictionConditionReasonAwaitingEviction, messageOf(active.Name, status))
}

// followActive checks the active responder while the pod exists: a completed or silent responder
// loses its turn. Berth's own turn lasts until the pod is deleted or no longer requested to leave.
func (c *Core) followActive(t *target, next *lifecyclev1alpha1.Eviction, active *lifecyclev1alpha1.TargetResponder) {
	s := &next.Status
	status := statusOf(s, active.Name)
	// A responder without a heartbeat is timed from the start of its turn.
	beat := ptr.Deref(status.HeartbeatTime, ptr.Deref(status.StartTime, metav1.Time{})).Time
	switch silent := max(c.wall().Sub(beat), 0); {
	case status.CompletionTime != nil:
		c.passOn(t, next, active, lifecyclev1alpha1.ResponderStateCompleted)
		return
	// Berth's own turn never times out.
	case active.Name == Imperative:
		c.report(t, status, silent)
	case silent >= heartbeatDeadline:
		c.passOn(t, next, active, lifecyclev1alpha1.ResponderStateInterrupted)
		return
	default:
		c.wake(t, c.now.Add(heartbeatDeadline-silent))
	}
	c.setConditions(next, lifecyclev1alpha1.EvictionConditionReasonAwaitingEviction, messageOf(active.Name, status))
}

// passOn ends a responder's turn and starts the next one. After the last turn the Eviction has
// failed.
func (c *Core) passOn(t *target, next *lifecyclev1alpha1.Eviction, active *lifecyclev1alpha1.TargetResponder,
	state lifecyclev1alpha1.ResponderStateType) {
	s := &next.Status
	for i := range s.TargetResponders {
		if s.TargetResponders[i].Name != active.Name {
			continue
		}
		if i+1 == len(s.TargetResponders) {
			c.conclude(t, next, state)
			return
		}
		active.State = state
		c.activate(next, i+1)
		return
	}
}

// report writes the progress of Berth's own eviction into the status of the Eviction. The message
// contains the obstacle, such as a budget; it is written at most once per messageEvery, however
// often evictions are tried.
func (c *Core) report(t *target, status *lifecyclev1alpha1.ResponderStatus, silent time.Duration) {
	if t.pod.Leaving {
		t.said = evictedText
	}
	message := ptr.Deref(status.Message, "")
	if t.said != "" {
		// Truncation may split a character, which the API server would reject.
		message = strings.ToValidUTF8(t.said[:min(len(t.said), longestMessage)], "")
	}
	changed := message != ptr.Deref(status.Message, "")
	due := heartbeatEvery
	switch {
	case status.HeartbeatTime == nil && t.said == "": // before the first eviction there is nothing to report
		return
	case status.HeartbeatTime == nil:
		due = 0
	case changed:
		due = messageEvery
	}
	if silent < due {
		c.wake(t, c.now.Add(due-silent))
		return
	}
	status.HeartbeatTime, status.Message = c.stamp(), &message
}

// completeGone ends the turn of a responder after the deletion of its pod, once the responder has
// reported completion. For Berth's own responder, the report must be written before the state.
func (c *Core) completeGone(t *target, next *lifecyclev1alpha1.Eviction, active *lifecyclev1alpha1.TargetResponder) {
	switch status := statusOf(&next.Status, active.Name); {
	case status.CompletionTime != nil:
		c.conclude(t, next, lifecyclev1alpha1.ResponderStateCompleted)
	case active.Name == Imperative:
		status.HeartbeatTime, status.CompletionTime = c.stamp(), c.stamp()
		_, message := t.ending()
		status.Message = &message
	case c.now.Before(t.goneAt.Add(completesWithin)):
		c.wake(t, t.goneAt.Add(completesWithin))
	default:
		c.conclude(t, next, lifecyclev1alpha1.ResponderStateInterrupted)
	}
}

// conclude ends an Eviction: its pod was deleted, all requests were withdrawn, or the last
// responder has finished.
func (c *Core) conclude(t *target, next *lifecyclev1alpha1.Eviction, last lifecyclev1alpha1.ResponderStateType) {
	if active := activeOf(&next.Status); active != nil {
		active.State = last
	}
	reason, message := t.ending()
	c.setConditions(next, reason, message)
}

// ending returns the current result of an Eviction. The order matters: a deleted pod counts as
// evicted, whatever else applies.
func (t *target) ending() (reason lifecyclev1alpha1.EvictionConditionReason, message string) {
	reason, over := t.over()
	switch {
	case t.gone:
		return reason, goneText
	case over:
		return reason, endedText
	case t.invalid() != "":
		return lifecyclev1alpha1.EvictionConditionReasonEvictionInvalid, t.invalid()
	case !t.wanted():
		return lifecyclev1alpha1.EvictionConditionReasonCanceledDueToNoRequesters, withdrawnText
	}
	return lifecyclev1alpha1.EvictionConditionReasonNoFurtherResponder, "no responder is left, and the pod still exists"
}

// setConditions sets the conditions TargetEvicted and Failed. A condition with an unchanged status
// keeps its transition time.
func (c *Core) setConditions(e *lifecyclev1alpha1.Eviction, reason lifecyclev1alpha1.EvictionConditionReason, message string) {
	for _, condition := range conditionsOf(reason, message) {
		condition.ObservedGeneration, condition.LastTransitionTime = e.Generation, *c.stamp()
		meta.SetStatusCondition(&e.Status.Conditions, condition)
	}
}

// conditionsOf returns the conditions TargetEvicted and Failed for a reason. A condition not
// described by the reason has a general one.
func conditionsOf(reason lifecyclev1alpha1.EvictionConditionReason, message string) []metav1.Condition {
	evicted := metav1.Condition{Type: string(lifecyclev1alpha1.EvictionConditionTargetEvicted), Message: message}
	failed := metav1.Condition{Type: string(lifecyclev1alpha1.EvictionConditionFailed), Message: message}
	set := func(c *metav1.Condition, status metav1.ConditionStatus, reason lifecyclev1alpha1.EvictionConditionReason) {
		c.Status, c.Reason = status, string(reason)
	}

	switch reason {
	case lifecyclev1alpha1.EvictionConditionReasonAwaitingEviction:
		set(&evicted, metav1.ConditionFalse, reason)
		set(&failed, metav1.ConditionFalse, reason)
	case lifecyclev1alpha1.EvictionConditionReasonPodDeleted, lifecyclev1alpha1.EvictionConditionReasonPodTerminal:
		set(&evicted, metav1.ConditionTrue, reason)
		set(&failed, metav1.ConditionFalse, lifecyclev1alpha1.EvictionConditionReasonSucceeded)
	default:
		set(&evicted, metav1.ConditionFalse, lifecyclev1alpha1.EvictionConditionReasonEvictionFailed)
		set(&failed, metav1.ConditionTrue, reason)
	}
	return []metav1.Condition{evicted, failed}
}

// messageOf returns the message of the conditions during a turn: the active responder and its last
// message.
func messageOf(responder string, status *lifecyclev1alpha1.ResponderStatus) string {
	if ptr.Deref(status.Message, "") == "" {
		return "waits for " + responder
	}
	return responder + ": " + *status.Message
}

// stamp returns the current time with the precision of the API.
func (c *Core) stamp() *metav1.Time { return &metav1.Time{Time: c.wall().Truncate(time.Second)} }

// decideRequests writes the status of the first request with an outdated status. The response
// queues the target again for the next request.
func (c *Core) decideRequests(t *target) {
	names := slices.SortedFunc(maps.Keys(t.requests), func(a, b types.NamespacedName) int { return cmp.Compare(a.Name, b.Name) })
	for _, name := range names {
		if next := c.answerOf(t, t.requests[name]); next != nil {
			if c.do(t, "request", next, func(ticket response.Ticket) Action { return WriteRequest{ticket, next} }) {
				return
			}
		}
	}
}

// answerOf returns a request with its new status, or nil if the status is current. The status
// mirrors the Eviction. Without an Eviction it reports only final states: the pod was deleted,
// cannot be evicted by request, or is no longer requested to leave.
func (c *Core) answerOf(t *target, r *lifecyclev1alpha1.EvictionRequest) *lifecyclev1alpha1.EvictionRequest {
	next := r.DeepCopy()
	next.Status.ObservedGeneration = ptr.To(max(1, r.Generation))
	reason, message := t.ending()
	e := t.current()
	_, over := t.over()
	switch {
	case over, t.invalid() != "", e == nil && !t.wanted():
	case e != nil: // mirrors the Eviction, also after its end
		told := meta.FindStatusCondition(e.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionFailed))
		if told == nil {
			return nil
		}
		reason, message = lifecyclev1alpha1.EvictionConditionReason(told.Reason), told.Message
	default:
		return nil
	}

	for _, condition := range conditionsOf(reason, message) {
		condition.ObservedGeneration, condition.LastTransitionTime = r.Generation, *c.stamp()
		meta.SetStatusCondition(&next.Status.Conditions, condition)
	}
	if equality.Semantic.DeepEqual(r.Status, next.Status) {
		return nil
	}
	return next
}
