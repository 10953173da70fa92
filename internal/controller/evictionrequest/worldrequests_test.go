// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"fmt"
	"maps"
	"strings"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// send sends a request of the core.
func (w *World) send(a evictionrequest.Action) {
	ticket, name, do := w.requestOf(a)
	// answer adds the ticket to a response.
	answer := func(of func() evictionrequest.Answered) func() evictionrequest.Event {
		return func() evictionrequest.Event {
			e := of()
			e.Ticket = ticket
			return e
		}
	}
	_, reads := a.(evictionrequest.ReadPod)
	kind := fmt.Sprintf("%T", a)
	w.Line.Send(virtual.Request[evictionrequest.Event]{
		Kind: kind[strings.Index(kind, ".")+1:], Object: name, Namespace: "default", Reads: reads,
		Do: answer(do), Ineffective: answer(func() evictionrequest.Answered { return w.ineffective(a) }),
		Fail: func(outcome response.Outcome, after time.Duration) evictionrequest.Event {
			return evictionrequest.Answered{Ticket: ticket, Outcome: outcome, Message: outcome.String(), RetryAfter: after}
		},
	})
}

// requestOf returns the action's ticket, the name of its object, and a function that carries it out
// like the API server.
func (w *World) requestOf(a evictionrequest.Action) (ticket response.Ticket, name string, do func() evictionrequest.Answered) {
	switch a := a.(type) {
	case evictionrequest.ReadPod:
		return a.Ticket, a.Name.Name, func() evictionrequest.Answered { return w.readPod(a) }
	case evictionrequest.Evict:
		sent := w.Now
		return a.Ticket, a.Name.Name, func() evictionrequest.Answered { return w.evict(a.Name, a.UID, sent) }
	case evictionrequest.Create:
		return a.Ticket, a.Eviction.Name, func() evictionrequest.Answered { return w.create(a.Eviction) }

	// A write changes only the labels or only the status, as in the API server.
	case evictionrequest.Label:
		return a.Ticket, a.Eviction.Name, func() evictionrequest.Answered {
			return w.update(a.Eviction, func(current metav1.Object) metav1.Object {
				next := current.(*lifecyclev1alpha1.Eviction).DeepCopy()
				next.Labels = maps.Clone(a.Eviction.Labels)
				return next
			})
		}
	case evictionrequest.WriteEviction:
		return a.Ticket, a.Eviction.Name, func() evictionrequest.Answered {
			return w.update(a.Eviction, func(current metav1.Object) metav1.Object {
				next := current.(*lifecyclev1alpha1.Eviction).DeepCopy()
				next.Status = *a.Eviction.Status.DeepCopy()
				return next
			})
		}
	case evictionrequest.WriteRequest:
		return a.Ticket, a.Request.Name, func() evictionrequest.Answered {
			return w.update(a.Request, func(current metav1.Object) metav1.Object {
				next := current.(*lifecyclev1alpha1.EvictionRequest).DeepCopy()
				next.Status = *a.Request.Status.DeepCopy()
				return next
			})
		}

	case evictionrequest.Delete:
		return a.Ticket, a.Eviction.Name, func() evictionrequest.Answered { return w.delete(a.Eviction) }
	}
	panic(fmt.Sprintf("%T", a))
}

// ineffective responds to a write with success without carrying it out, and shows the unchanged
// object.
func (w *World) ineffective(a evictionrequest.Action) evictionrequest.Answered {
	unchanged := func(o metav1.Object) evictionrequest.Answered {
		current := w.objects[keyOf(o)]
		if answer, ok := check(o, current); !ok {
			return answer
		}
		return evictionrequest.Answered{Written: current}
	}
	switch a := a.(type) {
	case evictionrequest.Label:
		return unchanged(a.Eviction)
	case evictionrequest.WriteEviction:
		return unchanged(a.Eviction)
	case evictionrequest.WriteRequest:
		return unchanged(a.Request)
	case evictionrequest.Delete:
		if current := w.objects[keyOf(a.Eviction)]; current != nil {
			w.show(current, seenOf(current))
		}
	}
	return evictionrequest.Answered{}
}

// readPod returns the pod, if it has the UID.
func (w *World) readPod(a evictionrequest.ReadPod) evictionrequest.Answered {
	if p := w.Pod(a.Name.Name); p != nil && p.UID == a.UID {
		read := evictionrequest.PodOf(p)
		return evictionrequest.Answered{Pod: &read}
	}
	return evictionrequest.Answered{Outcome: response.Gone}
}

// delete deletes an Eviction, if it has the UID.
func (w *World) delete(e *lifecyclev1alpha1.Eviction) evictionrequest.Answered {
	current := w.objects[keyOf(e)]
	if current == nil || current.GetUID() != e.UID {
		return evictionrequest.Answered{Outcome: response.Gone}
	}
	w.remove(current)
	w.Tracef("eviction %s is deleted", e.Name)
	return evictionrequest.Answered{}
}

// evict implements the eviction subresource: it refuses the pods in Refuses, and terminates all
// others.
func (w *World) evict(name types.NamespacedName, uid types.UID, sent time.Time) evictionrequest.Answered {
	p := w.Pod(name.Name)
	w.Tracef("evict %s", name.Name)
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
	w.checkEviction(p, sent)
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
	w.Tracef("eviction %s is made", e.Name)
	return evictionrequest.Answered{Written: e}
}

// update changes an object if it still has the version known to the caller.
func (w *World) update(o metav1.Object, change func(current metav1.Object) metav1.Object) evictionrequest.Answered {
	current := w.objects[keyOf(o)]
	if answer, ok := check(o, current); !ok {
		return answer
	}
	next := change(current)
	if answer, ok := w.validate(next, current); !ok {
		return answer
	}
	w.write(next)
	w.sayWritten(next)
	return evictionrequest.Answered{Written: next}
}

// check checks the preconditions of a write. If not ok, the response is the refusal.
func check(o, current metav1.Object) (evictionrequest.Answered, bool) {
	switch {
	case current == nil || current.GetUID() != o.GetUID():
		return evictionrequest.Answered{Outcome: response.Gone}, false
	// All writes of the core are conditional on a version.
	case current.GetResourceVersion() != o.GetResourceVersion():
		return evictionrequest.Answered{Outcome: response.Conflict, Message: "another version"}, false
	}
	return evictionrequest.Answered{}, true
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
	w.Tracef("refused: %v", err)
	return evictionrequest.Answered{Outcome: response.Failed, Message: err.Error()}, false
}

// sayWritten traces the state of an Eviction or a request after a write.
func (w *World) sayWritten(o metav1.Object) {
	switch o := o.(type) {
	case *lifecyclev1alpha1.EvictionRequest:
		w.Tracef("request %s: %s", o.Name, sayConditions(o.Status.Conditions))
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
		w.Tracef("eviction %s:%s; %s", o.Name, text, sayConditions(o.Status.Conditions))
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
