// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package requesttest

import (
	"fmt"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/response"
)

// send sends a request of the core. The request arrives 10 ms later, and its response another 10 ms
// later. If the process is killed in between, the response is dropped.
func (w *World) send(a evictionrequest.Action) {
	if w.core == nil { // killed by an earlier action
		return
	}
	life := w.life
	killed := false
	if w.KillAt > 0 {
		w.KillAt--
		killed = w.KillAt == 0
	}
	// The request is not sent.
	if killed && !w.KillAfter {
		w.Kill()
		return
	}
	if killed {
		// The request has been sent, and its response is dropped.
		defer w.Kill()
	}

	w.after(10*time.Millisecond, func() {
		// Losses are decided when the request arrives, because an outage may have begun since it
		// was sent.
		lost := w.Faults.Down || w.random.Float64() < w.Faults.Lost
		answer := evictionrequest.Answered{Outcome: response.Failed, Message: "connection refused"}
		if !lost {
			if w.RespondTo != nil {
				answer = w.RespondTo(a, func() evictionrequest.Answered { return w.carryOut(a) })
			} else {
				answer = w.carryOut(a)
			}
		}
		if w.random.Float64() < w.Faults.Unanswered {
			answer = evictionrequest.Answered{Outcome: response.Failed, Message: "timed out"}
		}
		answer.Ticket = ticketOf(a)
		w.after(10*time.Millisecond, func() {
			if life == w.life {
				w.step(answer)
			}
		})
	})
}

// ticketOf returns the action's ticket.
func ticketOf(a evictionrequest.Action) response.Ticket {
	switch a := a.(type) {
	case evictionrequest.ReadPod:
		return a.Ticket
	case evictionrequest.Evict:
		return a.Ticket
	case evictionrequest.Create:
		return a.Ticket
	case evictionrequest.Label:
		return a.Ticket
	case evictionrequest.WriteEviction:
		return a.Ticket
	case evictionrequest.WriteRequest:
		return a.Ticket
	case evictionrequest.Delete:
		return a.Ticket
	}
	panic(fmt.Sprintf("%T", a))
}

// carryOut handles a request like the API server.
func (w *World) carryOut(a evictionrequest.Action) evictionrequest.Answered {
	// Only requests that arrive are counted, so that a test can detect repeated requests.
	w.Requests[fmt.Sprintf("%T", a)]++

	switch a := a.(type) {
	case evictionrequest.ReadPod:
		if p := w.Pod(a.Name.Name); p != nil && p.UID == a.UID {
			read := evictionrequest.PodOf(p)
			return evictionrequest.Answered{Pod: &read}
		}
		return evictionrequest.Answered{Outcome: response.Gone}
	case evictionrequest.Evict:
		return w.evict(a.Name, a.UID)
	case evictionrequest.Create:
		return w.create(a.Eviction)

	// A write changes only the labels or only the status, as in the API server.
	case evictionrequest.Label:
		return w.update(a.Eviction, func(current metav1.Object) metav1.Object {
			next := current.(*lifecyclev1alpha1.Eviction).DeepCopy()
			next.Labels = a.Eviction.Labels
			return next
		})
	case evictionrequest.WriteEviction:
		return w.update(a.Eviction, func(current metav1.Object) metav1.Object {
			next := current.(*lifecyclev1alpha1.Eviction).DeepCopy()
			next.Status = *a.Eviction.Status.DeepCopy()
			return next
		})
	case evictionrequest.WriteRequest:
		return w.update(a.Request, func(current metav1.Object) metav1.Object {
			next := current.(*lifecyclev1alpha1.EvictionRequest).DeepCopy()
			next.Status = *a.Request.Status.DeepCopy()
			return next
		})

	case evictionrequest.Delete:
		current := w.objects[keyOf(a.Eviction)]
		if current == nil || current.GetUID() != a.Eviction.UID {
			return evictionrequest.Answered{Outcome: response.Gone}
		}
		w.remove(current)
		w.say("eviction %s is deleted", a.Eviction.Name)
		return evictionrequest.Answered{}
	}
	panic(fmt.Sprintf("%T", a))
}

// evict implements the eviction subresource: it refuses the pods in Refuses, and terminates all
// others.
func (w *World) evict(name types.NamespacedName, uid types.UID) evictionrequest.Answered {
	p := w.Pod(name.Name)
	w.say("evict %s", name.Name)
	switch {
	case p == nil:
		return evictionrequest.Answered{Outcome: response.Gone}
	// The real API server also responds with a conflict if the precondition fails.
	case p.UID != uid:
		return evictionrequest.Answered{Outcome: response.Conflict, Message: "the UID in the precondition is another one"}
	case w.Refuses[p.Name] != "":
		return evictionrequest.Answered{Outcome: response.Busy, Message: w.Refuses[p.Name]}
	}
	w.Evicted[uid]++
	w.checkEviction(p)
	w.Terminate(p)
	return evictionrequest.Answered{}
}

// create creates an Eviction without status, like the API server, which drops the status of a new
// object.
func (w *World) create(e *lifecyclev1alpha1.Eviction) evictionrequest.Answered {
	// Like package requestcontroller, it returns an existing Eviction.
	if there := w.objects[keyOf(e)]; there != nil {
		return evictionrequest.Answered{Written: there}
	}
	e = e.DeepCopy()
	e.Generation, e.Status = 1, lifecyclev1alpha1.EvictionStatus{}
	if answer, ok := w.validate(e, nil); !ok {
		return answer
	}
	w.write(e)
	w.say("eviction %s is made", e.Name)
	return evictionrequest.Answered{Written: e}
}

// update changes an object if it still has the version known to the caller.
func (w *World) update(o metav1.Object, change func(current metav1.Object) metav1.Object) evictionrequest.Answered {
	current := w.objects[keyOf(o)]
	switch {
	case current == nil || current.GetUID() != o.GetUID():
		return evictionrequest.Answered{Outcome: response.Gone}
	// All writes of the core are conditional on a version.
	case current.GetResourceVersion() != o.GetResourceVersion():
		return evictionrequest.Answered{Outcome: response.Conflict, Message: "another version"}
	}
	next := change(current)
	if answer, ok := w.validate(next, current); !ok {
		return answer
	}
	w.write(next)
	w.sayWritten(next)
	return evictionrequest.Answered{Written: next}
}

// validate calls Validate, if it is set. If not ok, the response is the refusal.
func (w *World) validate(next, before metav1.Object) (evictionrequest.Answered, bool) {
	if w.Validate == nil {
		return evictionrequest.Answered{}, true
	}
	err := w.Validate(next, before)
	if err == nil {
		return evictionrequest.Answered{}, true
	}
	w.say("refused: %v", err)
	return evictionrequest.Answered{Outcome: response.Failed, Message: err.Error()}, false
}

// sayWritten traces the state of an Eviction or a request after a write.
func (w *World) sayWritten(o metav1.Object) {
	switch o := o.(type) {
	case *lifecyclev1alpha1.EvictionRequest:
		w.say("request %s: %s", o.Name, sayConditions(o.Status.Conditions))
	case *lifecyclev1alpha1.Eviction:
		text := ""
		for i, r := range o.Status.TargetResponders {
			text += fmt.Sprintf(" %s=%s", r.Name, r.State)
			if said := o.Status.Responders[i]; said.Message != nil {
				text += fmt.Sprintf(" (%s)", *said.Message)
			}
		}
		for _, r := range o.Status.Requesters {
			text += fmt.Sprintf(", %s wants %s", r.Name, r.Intent)
		}
		w.say("eviction %s:%s; %s", o.Name, text, sayConditions(o.Status.Conditions))
	}
}

// sayConditions describes the true condition, or otherwise a condition with the reason
// AwaitingEviction.
func sayConditions(conditions []metav1.Condition) (text string) {
	for _, c := range conditions {
		if c.Status == metav1.ConditionTrue || text == "" && c.Reason == string(lifecyclev1alpha1.EvictionConditionReasonAwaitingEviction) {
			text = fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return text
}
