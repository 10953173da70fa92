// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// keptFor is the minimum time for which an Eviction is kept after its end. It is kept longer while
// a request for the pod exists.
const keptFor = time.Minute

// targetKey identifies a pod. The API server does not check that a request's name and UID belong
// together, so each pair is a separate target.
type targetKey struct {
	name types.NamespacedName
	uid  types.UID
}

// compareKeys orders targets, so that results do not depend on map order.
func compareKeys(a, b targetKey) int {
	return cmp.Or(cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name), cmp.Compare(a.uid, b.uid))
}

// target is a pod with present or past eviction requests.
//
// The actions for one pod, in their order, from testdata/budget.txt: an EvictionRequest is created,
// and a disruption budget refuses the eviction.
//
//	Create         the Eviction pod-UID, without a status
//	WriteEviction  its responders, the first one active: imperative-eviction.k8s.io/evictor
//	Evict          the Eviction API returns 429 with the budget's reason
//	WriteEviction  the heartbeat, and the reason as the responder's message
//	WriteRequest   the request reports the obstacle
//	Evict          again after 1 s, then with increasing back-off
//
// After the deletion of the pod, WriteEviction completes the responder, then concludes the
// Eviction, and WriteRequest informs the requester.
type target struct {
	targetKey
	requests  held[*lifecyclev1alpha1.EvictionRequest]
	evictions held[*lifecyclev1alpha1.Eviction]

	pod      *Pod      // nil if unknown, or if deleted (gone)
	podRound int       // number of the last list containing the pod
	assumed  time.Time // time of an accepted eviction not yet confirmed by a watch; zero otherwise
	gone     bool      // final: no other pod gets the UID
	goneAt   time.Time // first observation of the deletion or terminal phase

	queued bool            // in Core.queue
	wakes  time.Time       // the earliest timer
	ticket response.Ticket // ticket of the request in flight; 0 if none
	sent   time.Time       // time of the last request
	pace   *pacing.Pace    // pace of that request
	// paces space the requests by kind and object name.
	paces map[string]*pacing.Pace

	tries  int       // number of consecutive refused evictions
	notYet time.Time // earliest time of the next eviction
	said   string    // result of the last eviction; empty if this process made none
}

// setPod stores the current state of the pod; nil means deleted. A deletion is final: late watch
// events do not undo it.
func (t *target) setPod(p *Pod, round int) {
	t.assumed = time.Time{}
	switch {
	case t.gone:
	case p == nil:
		t.pod, t.gone = nil, true
	default:
		t.pod, t.podRound = p, round
	}
}

// over reports whether the pod was deleted or has ended, and the corresponding reason.
func (t *target) over() (reason lifecyclev1alpha1.EvictionConditionReason, over bool) {
	switch {
	case t.gone:
		return lifecyclev1alpha1.EvictionConditionReasonPodDeleted, true
	case t.pod != nil && t.pod.Ended:
		return lifecyclev1alpha1.EvictionConditionReasonPodTerminal, true
	}
	return "", false
}

// invalid returns the reason that rules out eviction by request, or an empty string.
func (t *target) invalid() string {
	if t.pod != nil && t.pod.Grouped {
		return "the pod belongs to a pod group, which EvictionRequests do not support"
	}
	return ""
}

// wanted reports whether a request still requires the pod to leave and has not been reported as
// failed.
func (t *target) wanted() bool {
	return rules.Any(maps.Values(t.requests), wants)
}

// wants reports whether a request requires the pod to leave. Deleting the request withdraws it.
func wants(r *lifecyclev1alpha1.EvictionRequest) bool {
	failed := meta.FindStatusCondition(r.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionFailed))
	told := failed != nil && failed.Status == metav1.ConditionTrue && failed.ObservedGeneration == r.Generation
	return r.Spec.Intent == lifecyclev1alpha1.EvictionRequestIntentEviction && !told && r.DeletionTimestamp == nil
}

// renewed reports whether a new or changed request requires the pod to leave. Requests observed
// earlier were served by the existing Eviction, unless it was canceled for lack of requests: they
// were observed while its cancellation was being written.
func (t *target) renewed(e *lifecyclev1alpha1.Eviction) bool {
	failed := meta.FindStatusCondition(e.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionFailed))
	canceled := failed != nil && failed.Reason == string(lifecyclev1alpha1.EvictionConditionReasonCanceledDueToNoRequesters)
	return rules.Any(maps.Values(t.requests), func(r *lifecyclev1alpha1.EvictionRequest) bool {
		return wants(r) && (canceled || ptr.Deref(r.Status.ObservedGeneration, 0) != r.Generation)
	})
}

// current returns the Eviction of the pod: an active one, or else the newest. Other clients may
// have created Evictions as well; normally one exists.
func (t *target) current() *lifecyclev1alpha1.Eviction {
	list := slices.SortedFunc(maps.Values(t.evictions), func(a, b *lifecyclev1alpha1.Eviction) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// rank orders active Evictions before ended ones.
func rank(e *lifecyclev1alpha1.Eviction) int {
	if _, final := endOf(e); final {
		return 1
	}
	return 0
}

// endOf returns the end time of an Eviction and whether it has ended.
func endOf(e *lifecyclev1alpha1.Eviction) (at time.Time, ended bool) {
	if c := rules.Find(e.Status.Conditions, isFinal); c != nil {
		return c.LastTransitionTime.Time, true
	}
	return time.Time{}, false
}

// isFinal reports whether a condition marks the end of an Eviction, successful or not.
func isFinal(c *metav1.Condition) bool {
	return c.Status == metav1.ConditionTrue && (c.Type == string(lifecyclev1alpha1.EvictionConditionTargetEvicted) ||
		c.Type == string(lifecyclev1alpha1.EvictionConditionFailed))
}

// decide makes the next request about a target, or schedules the target. It is the complete control
// loop for one pod and uses only the state of the API: first the pod, then the Eviction, then the
// statuses of the requests.
func (c *Core) decide(t *target) {
	if c.targets[t.targetKey] != t {
		return
	}

	if len(t.requests) == 0 && len(t.evictions) == 0 {
		c.forgetRefusals(t)
		// The paces are kept for a while: an Eviction with a finalizer survives its deletion.
		if at := t.sent.Add(keptFor); c.now.Before(at) {
			c.wake(t, at)
			return
		}
		delete(c.targets, t.targetKey)
		return
	}

	if at := t.assumed.Add(assumedFor); !t.assumed.IsZero() && c.now.Before(at) {
		c.wake(t, at)
	} else if !t.assumed.IsZero() {
		t.pod, t.assumed = nil, time.Time{} // a webhook may accept evictions without effect
	}
	// All further decisions depend on whether the pod exists, and the cache may be stale.
	if t.pod == nil && !t.gone {
		c.do(t, "read", nil, func(ticket response.Ticket) Action { return ReadPod{ticket, t.name, t.uid} })
		return
	}

	if _, over := t.over(); over && t.goneAt.IsZero() {
		t.goneAt = c.now
		c.forgetRefusals(t)
	}
	if !c.decideEviction(t) {
		c.decideRequests(t)
	}
}

// decideEviction makes the next request about the Eviction or the pod, and reports whether it made
// one.
//
// An Eviction is created when the pod is first requested to leave, lasts until its final condition,
// and is then kept for readers of the result. It is deleted at least keptFor after its end if no
// request remains, or immediately for a new request, because an ended Eviction cannot be restarted.
func (c *Core) decideEviction(t *target) bool {
	e := t.current()
	_, over := t.over()
	wanted := t.wanted() && !over && t.invalid() == ""
	if e == nil {
		if wanted {
			t.said = ""
			c.do(t, "create", nil, func(ticket response.Ticket) Action { return Create{ticket, c.newEviction(t)} })
		}
		return wanted
	}

	if ended, final := endOf(e); final {
		switch at := c.now.Add(ended.Add(keptFor).Sub(c.wall())); {
		case wanted && t.renewed(e), len(t.requests) == 0 && !c.now.Before(at):
			c.do(t, "delete", e, func(ticket response.Ticket) Action { return Delete{ticket, e} })
			return true
		case len(t.requests) == 0:
			c.wake(t, at)
		}
		return false
	}

	if next := c.progress(t, e); next != nil {
		c.do(t, "status", next, func(ticket response.Ticket) Action { return WriteEviction{ticket, next} })
		return true
	}
	if c.evicts(t, e) {
		c.do(t, "evict", nil, func(ticket response.Ticket) Action { return Evict{ticket, t.name, t.uid} })
		return true
	}
	if labelled := t.labels(e); labelled != nil {
		c.do(t, "label", labelled, func(ticket response.Ticket) Action { return Label{ticket, labelled} })
		return true
	}
	return false
}

// evicts reports whether to evict the pod through the Eviction API now: Berth has its turn, the pod
// is not terminating, and the delay after the last refusal has passed.
func (c *Core) evicts(t *target, e *lifecyclev1alpha1.Eviction) bool {
	active := activeOf(&e.Status)
	if _, over := t.over(); over || active == nil || active.Name != Imperative || t.pod.Leaving || !t.wanted() {
		return false
	}
	if c.now.Before(t.notYet) {
		c.wake(t, t.notYet)
		return false
	}
	return true
}

// newEviction returns the Eviction of a pod. Its name is derived from the UID, so that a repeated
// creation has no effect.
func (c *Core) newEviction(t *target) *lifecyclev1alpha1.Eviction {
	e := &lifecyclev1alpha1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.name.Namespace, Name: "pod-" + string(t.uid)},
		Spec: lifecyclev1alpha1.EvictionSpec{Target: lifecyclev1alpha1.EvictionTarget{
			Pod: &lifecyclev1alpha1.EvictionPodReference{Name: t.name.Name, UID: t.uid},
		}},
	}
	e.Labels = t.roles(&e.Status)
	return e
}

// labels returns the Eviction with its missing labels, or nil.
func (t *target) labels(e *lifecyclev1alpha1.Eviction) *lifecyclev1alpha1.Eviction {
	roles := t.roles(&e.Status)
	for name, role := range roles {
		if e.Labels[name] != role && len(e.Labels) < mostLabels {
			e = e.DeepCopy()
			e.Labels = labels.Merge(e.Labels, roles)
			return e
		}
	}
	return nil
}

// roles returns the role of each participant by name. The API requires them as labels of the
// Eviction, so that participants can find their Evictions.
func (t *target) roles(status *lifecyclev1alpha1.EvictionStatus) map[string]string {
	roles := map[string]string{}
	for _, r := range t.requesters(status) {
		roles[r.Name] = string(lifecyclev1alpha1.EvictionParticipantRoleRequester)
	}
	for _, r := range t.responders(status) {
		role := lifecyclev1alpha1.EvictionParticipantRoleResponder
		if roles[r.Name] != "" {
			role = lifecyclev1alpha1.EvictionParticipantRoleRequesterResponder
		}
		roles[r.Name] = string(role)
	}
	return roles
}
