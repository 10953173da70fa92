package evictionrequest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/ask"
)

// keptFor is for how long an Eviction that has ended stays once nobody requests it any more.
const keptFor = time.Minute

// targetKey is a pod. The API server does not check that a request's name and UID belong together,
// so another pair is another target.
type targetKey struct {
	name types.NamespacedName
	uid  types.UID
}

// compareKeys orders targets, so that nothing depends on the order of a map.
func compareKeys(a, b targetKey) int {
	return cmp.Or(cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name), cmp.Compare(a.uid, b.uid))
}

// target is a pod that somebody requests to be evicted, or did.
//
// The requests about one pod, in their order, from testdata/budget.txt: somebody creates an
// EvictionRequest, and a disruption budget refuses.
//
//	Create         the Eviction pod-UID, without a status
//	WriteEviction  its responders, the first one active: imperative-eviction.k8s.io/evictor
//	Evict          the Eviction API answers 429, with the budget's reason
//	WriteEviction  the heartbeat and the reason, as the responder's message
//	WriteRequest   the request says what is waited for
//	Evict          again, after 1 s, then after growing pauses
//
// When the pod is gone, WriteEviction completes the responder, then concludes the Eviction, and
// WriteRequest tells the requester.
type target struct {
	targetKey
	requests  held[*lifecyclev1alpha1.EvictionRequest]
	evictions held[*lifecyclev1alpha1.Eviction]

	pod      *Pod      // nil: not known, unless it is gone
	podRound int       // the last list of pods that showed it, by number
	assumed  time.Time // when an eviction was accepted that no watch has shown since; zero: none
	gone     bool      // for good: no other pod gets the UID
	goneAt   time.Time // when it was first known to be gone, or to have ended

	queued bool      // in Core.queue
	wakes  time.Time // the first timer
	ticket Ticket    // of the request under way; 0: none
	// paces space the requests by kind and name of the object.
	paces map[string]*ask.Pace

	tries  int       // evictions in a row that were refused
	notYet time.Time // until the next one
	said   string    // what the last eviction came to; "": none was tried in this life
}

// setPod takes in the pod as it is now; nil: it is gone. That is final: what a watch shows late
// does not bring it back.
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

// over reports whether the pod has ended, and by which reason.
func (t *target) over() (reason lifecyclev1alpha1.EvictionConditionReason, over bool) {
	switch {
	case t.gone:
		return lifecyclev1alpha1.EvictionConditionReasonPodDeleted, true
	case t.pod != nil && t.pod.Ended:
		return lifecyclev1alpha1.EvictionConditionReasonPodTerminal, true
	}
	return "", false
}

// invalid returns why the pod cannot be evicted by request, or "".
func (t *target) invalid() string {
	if t.pod != nil && t.pod.Grouped {
		return "the pod is of a pod group, which EvictionRequests do not support"
	}
	return ""
}

// wanted reports whether somebody wants the pod to leave, and has not been told that it failed.
func (t *target) wanted() bool {
	for _, r := range t.requests {
		if wants(r) {
			return true
		}
	}
	return false
}

// wants reports whether a request wants the pod to leave. To delete it is to withdraw it.
func wants(r *lifecyclev1alpha1.EvictionRequest) bool {
	failed := meta.FindStatusCondition(r.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionFailed))
	told := failed != nil && failed.Status == metav1.ConditionTrue && failed.ObservedGeneration == r.Generation
	return r.Spec.Intent == lifecyclev1alpha1.EvictionRequestIntentEviction && !told && r.DeletionTimestamp == nil
}

// renewed reports whether somebody wants the pod to leave since its Eviction has ended: not those
// who had been told that they wait for that one.
func (t *target) renewed() bool {
	for _, r := range t.requests {
		if wants(r) && ptr.Deref(r.Status.ObservedGeneration, 0) != r.Generation {
			return true
		}
	}
	return false
}

// current returns the Eviction of the pod: one that goes on, else the newest. Others may have made
// Evictions too; there should be one.
func (t *target) current() *lifecyclev1alpha1.Eviction {
	list := slices.SortedFunc(maps.Values(t.evictions), func(a, b *lifecyclev1alpha1.Eviction) int {
		if final := cmp.Compare(rank(a), rank(b)); final != 0 {
			return final
		}
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// rank has Evictions that go on before those that have ended.
func rank(e *lifecyclev1alpha1.Eviction) int {
	if _, final := endOf(e); final {
		return 1
	}
	return 0
}

// endOf returns when an Eviction ended, if it did.
func endOf(e *lifecyclev1alpha1.Eviction) (at time.Time, ended bool) {
	for i := range e.Status.Conditions {
		if c := &e.Status.Conditions[i]; isFinal(c) {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// isFinal reports whether the condition says that the Eviction has ended, one way or the other.
func isFinal(c *metav1.Condition) bool {
	return c.Status == metav1.ConditionTrue && (c.Type == string(lifecyclev1alpha1.EvictionConditionTargetEvicted) ||
		c.Type == string(lifecyclev1alpha1.EvictionConditionFailed))
}

// decide makes the next request about a target, or has it looked at again when that is due. It is
// the whole loop of the controller for one pod, and starts from nothing but what the API has: first
// the pod, then the Eviction, then the statuses of the requests.
func (c *Core) decide(t *target) {
	if c.targets[t.targetKey] != t {
		return
	}

	if len(t.requests) == 0 && len(t.evictions) == 0 {
		c.forgetRefusals(t)
		delete(c.targets, t.targetKey)
		return
	}

	if !t.assumed.IsZero() && !c.now.Before(t.assumed.Add(assumedFor)) {
		t.pod, t.assumed = nil, time.Time{} // a webhook may accept evictions that have no effect
	}
	// Whether the pod is there decides all that follows, and the cache may be behind.
	if t.pod == nil && !t.gone {
		c.do(t, "read", nil, func(ticket Ticket) Action { return ReadPod{ticket, t.name, t.uid} })
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

// decideEviction makes the next request about the Eviction, or about the pod, and reports whether
// there was one.
//
// An Eviction is made when somebody wants the pod to leave, goes on until its final condition, and
// then stays: for those who read the outcome. It is deleted a minute after the last request, or at
// once if somebody asks anew, since an ended Eviction cannot begin again.
func (c *Core) decideEviction(t *target) bool {
	e := t.current()
	_, over := t.over()
	wanted := t.wanted() && !over && t.invalid() == ""
	if e == nil {
		if wanted {
			t.said = ""
			c.do(t, "create", nil, func(ticket Ticket) Action { return Create{ticket, c.newEviction(t)} })
		}
		return wanted
	}

	if ended, final := endOf(e); final {
		at := c.now.Add(ended.Add(keptFor).Sub(c.wall()))
		switch {
		case wanted && t.renewed(), len(t.requests) == 0 && !c.now.Before(at):
			c.do(t, "delete", e, func(ticket Ticket) Action { return Delete{ticket, e} })
			return true
		case len(t.requests) == 0:
			c.wake(t, at)
		}
		return false
	}

	if next := c.progress(t, e); next != nil {
		c.do(t, "status", next, func(ticket Ticket) Action { return WriteEviction{ticket, next} })
		return true
	}
	if c.evicts(t, e) {
		c.do(t, "evict", nil, func(ticket Ticket) Action { return Evict{ticket, t.name, t.uid} })
		return true
	}
	if labelled := t.labels(e); labelled != nil {
		c.do(t, "label", labelled, func(ticket Ticket) Action { return Label{ticket, labelled} })
		return true
	}
	return false
}

// evicts reports whether the pod is to be evicted through the Eviction API now: it is Berth's turn,
// the pod is not leaving yet, and the pause after the last refusal is over.
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

// newEviction is the Eviction that a pod gets. Its name is by the UID: made twice, it is there
// once.
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

// labels returns the Eviction with the labels that it lacks, or nil.
func (t *target) labels(e *lifecyclev1alpha1.Eviction) *lifecyclev1alpha1.Eviction {
	roles := t.roles(&e.Status)
	for name, role := range roles {
		if e.Labels[name] != role {
			e = e.DeepCopy()
			if e.Labels == nil {
				e.Labels = map[string]string{}
			}
			maps.Copy(e.Labels, roles)
			return e
		}
	}
	return nil
}

// roles are those of everybody who takes part, by name: the API wants them as labels of the
// Eviction, so that each finds those that it is part of.
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
