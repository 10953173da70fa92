package evictionrequest

import (
	"strings"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	// heartbeatDeadline is the API's: a responder that says nothing for so long is passed over.
	heartbeatDeadline = 20 * time.Minute
	// heartbeatEvery is how often Berth says that it goes on, messageEvery how often what it waits
	// for: the API asks for no more than one heartbeat in 20 s.
	heartbeatEvery = 5 * time.Minute
	messageEvery   = 20 * time.Second
	// completesWithin is how long a responder whose pod has gone has to say that it has completed.
	completesWithin = 5 * time.Second
	longestMessage  = 4000 // that the API takes
)

const (
	evictedText   = "the pod is being deleted"
	goneText      = "the pod is gone"
	endedText     = "the pod has ended"
	withdrawnText = "no request wants the pod to be evicted"
)

// progress returns the Eviction with the status that follows from its own and from the pod, or nil
// if that is the one that it has. Each call takes one step of the protocol, so that the API server
// can check each: nobody active -> the first responder active -> ... -> a final condition.
func (c *Core) progress(t *target, e *lifecyclev1alpha1.Eviction) *lifecyclev1alpha1.Eviction {
	next := e.DeepCopy()
	s := &next.Status
	s.ObservedGeneration = ptr.To(max(1, e.Generation))
	s.Requesters = t.requesters(&e.Status)
	s.TargetResponders = t.responders(&e.Status)

	_, over := t.over()
	switch active := activeOf(s); {
	// It begins: all responders get their places, and the first its turn.
	case len(s.Responders) == 0 && !over && t.wanted() && t.invalid() == "":
		for _, r := range s.TargetResponders {
			s.Responders = append(s.Responders, lifecyclev1alpha1.ResponderStatus{Name: r.Name})
		}
		c.activate(next, 0)
	case len(s.Responders) == 0: // withdrawn, or gone, before anybody was asked
		s.TargetResponders = nil
		c.conclude(t, next, "")
	// Nobody has a turn, and the Eviction has not ended: it ends now.
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

// activate makes it a responder's turn. Its time begins now: a responder that never reports is
// passed over heartbeatDeadline later.
func (c *Core) activate(next *lifecyclev1alpha1.Eviction, turn int) {
	active := &next.Status.TargetResponders[turn]
	active.State = lifecyclev1alpha1.ResponderStateActive
	said := statusOf(&next.Status, active.Name)
	said.StartTime = c.stamp()
	c.setConditions(next, lifecyclev1alpha1.EvictionConditionReasonAwaitingEviction, messageOf(active.Name, said))
}

// followActive looks after the responder whose turn it is, while the pod is there: one that has
// completed without the pod having gone, or that is silent for too long, is passed over. Berth
// itself never is; it goes on until the pod is gone or nobody wants it to leave.
func (c *Core) followActive(t *target, next *lifecyclev1alpha1.Eviction, active *lifecyclev1alpha1.TargetResponder) {
	s := &next.Status
	said := statusOf(s, active.Name)
	// A responder that has never reported is timed from the beginning of its turn.
	beat := ptr.Deref(said.HeartbeatTime, ptr.Deref(said.StartTime, metav1.Time{})).Time
	silent := c.wall().Sub(beat)
	switch {
	case said.CompletionTime != nil:
		c.passOn(t, next, active, lifecyclev1alpha1.ResponderStateCompleted)
		return
	// Berth's own turn never ends by silence.
	case active.Name == Imperative:
		c.report(t, said, silent)
	case silent >= heartbeatDeadline:
		c.passOn(t, next, active, lifecyclev1alpha1.ResponderStateInterrupted)
		return
	default:
		c.wake(t, c.now.Add(heartbeatDeadline-silent))
	}
	c.setConditions(next, lifecyclev1alpha1.EvictionConditionReasonAwaitingEviction, messageOf(active.Name, said))
}

// passOn ends a responder's turn, and makes it the next one's. After the last one the Eviction has
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

// report has Berth say how far its own eviction is, in the status of the Eviction. What others wait
// for is in the message, such as the budget that refuses; it is written at most every messageEvery,
// however often evictions are tried.
func (c *Core) report(t *target, said *lifecyclev1alpha1.ResponderStatus, silent time.Duration) {
	if t.pod.Leaving {
		t.said = evictedText
	}
	message := ptr.Deref(said.Message, "")
	if t.said != "" {
		// The cut may be within a character, which the API server would refuse.
		message = strings.ToValidUTF8(t.said[:min(len(t.said), longestMessage)], "")
	}
	changed := message != ptr.Deref(said.Message, "")
	due := heartbeatEvery
	switch {
	case said.HeartbeatTime == nil && t.said == "": // the eviction comes first
		return
	case said.HeartbeatTime == nil:
		due = 0
	case changed:
		due = messageEvery
	}
	if silent < due {
		c.wake(t, c.now.Add(due-silent))
		return
	}
	said.HeartbeatTime, said.Message = c.stamp(), &message
}

// completeGone ends the turn of a responder whose pod has gone, once it has said so. Berth says it
// of itself; what it says has to be written before its state is.
func (c *Core) completeGone(t *target, next *lifecyclev1alpha1.Eviction, active *lifecyclev1alpha1.TargetResponder) {
	said := statusOf(&next.Status, active.Name)
	switch {
	case said.CompletionTime != nil:
		c.conclude(t, next, lifecyclev1alpha1.ResponderStateCompleted)
	case active.Name == Imperative:
		said.HeartbeatTime, said.CompletionTime = c.stamp(), c.stamp()
		_, message := t.ending()
		said.Message = &message
	case c.now.Before(t.goneAt.Add(completesWithin)):
		c.wake(t, t.goneAt.Add(completesWithin))
	default:
		c.conclude(t, next, lifecyclev1alpha1.ResponderStateInterrupted)
	}
}

// conclude ends an Eviction: its pod has gone, nobody wants it, or no responder is left.
func (c *Core) conclude(t *target, next *lifecyclev1alpha1.Eviction, last lifecyclev1alpha1.ResponderStateType) {
	if active := activeOf(&next.Status); active != nil {
		active.State = last
	}
	reason, message := t.ending()
	c.setConditions(next, reason, message)
}

// ending returns how an Eviction ends now. The order counts: a pod that is gone was evicted,
// whatever else is true of it.
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
	return lifecyclev1alpha1.EvictionConditionReasonNoFurtherResponder, "no responder is left, and the pod is still there"
}

// setConditions sets both conditions. One whose status stays keeps its time of transition.
func (c *Core) setConditions(e *lifecyclev1alpha1.Eviction, reason lifecyclev1alpha1.EvictionConditionReason, message string) {
	for _, condition := range conditionsOf(reason, message) {
		condition.ObservedGeneration, condition.LastTransitionTime = e.Generation, *c.stamp()
		meta.SetStatusCondition(&e.Status.Conditions, condition)
	}
}

// conditionsOf returns both conditions, as they are with the reason of the one that tells more.
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

// messageOf is the conditions' message while a responder has its turn: who it is, and what it said
// last.
func messageOf(responder string, said *lifecyclev1alpha1.ResponderStatus) string {
	if ptr.Deref(said.Message, "") == "" {
		return "waits for " + responder
	}
	return responder + ": " + *said.Message
}

// stamp is the present time as the API stores it.
func (c *Core) stamp() *metav1.Time { return &metav1.Time{Time: c.wall().Truncate(time.Second)} }
