// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file begins an attempt, returns its pod to the queue, and reports the reason. The decision
// in between is in decide.go.

// attempts decides pods. An attempt takes a pod from the queue and ends in a placement, or requeues
// the pod with the reason. An attempt with an asynchronous question is suspended until the answer
// arrives.
//
// The only lasting effect of a failed attempt is its final nomination. All its counts and
// reservations are released in the same step, or with the last outcome of its actions.
type attempts struct {
	*common
	events      *clusterEvents
	nominations *nominations
	decisions   *decisions
	placements  *placements
	podGroups   *podGroups
	reserved    *reservations
	preemptions *preemptions
	profiles    *profiles

	asking    int            // number of unanswered asynchronous questions
	preparing map[string]int // number of pods being prepared asynchronously, by namespace
	limits    gang.Limits    // limits of attempts for groups; changed by tests
}

// newAttempt begins an attempt for a pod. The returned attempt is not registered anywhere, and can
// simply be dropped. Every attempt draws a random number for Sampled, so that the sequence of
// random numbers is the same with and without metrics.
func (s *attempts) newAttempt(p *servedProfile, item *queue.Item) *podAttempt {
	pod := item.Pod
	a := &podAttempt{profile: p, item: item, began: s.now, watch: s.clock()}
	waiting := cluster.NewPod(item.Class, pod.Name, pod.UID) // the cluster keeps it while the pod exists
	waiting.Created = cluster.TimeOf(pod.CreationTimestamp.Time)
	if item.Resizes() {
		waiting.SetNominated(pod.Spec.NodeName) // victims leave that node, and no other pod takes their room
	} else if nominated := s.cluster.Nominated(pod.UID); nominated != nil {
		waiting.SetNominated(nominated.Nominated)
	} else {
		waiting.SetNominated(pod.Status.NominatedNodeName)
	}
	a.Attempt = Attempt{
		Pod: pod, Waiting: waiting, Profile: pod.Spec.SchedulerName, Cluster: s.cluster, Sampled: s.rng.IntN(100) < sampled,
	}
	a.placement.podAttempt = a
	return a
}

// requeueUnschedulable requeues an unschedulable pod to wait for a helpful event, and reports why.
// nominate is the pod's new nomination; nil leaves it unchanged.
func (s *attempts) requeueUnschedulable(a *podAttempt, w *unschedulableReason, nominate *string) {
	s.observer().Attempted(a.Profile, Unschedulable, s.clock().Sub(a.watch))
	s.queue.Rejected(a.item, w.plugins, w.pending, s.now)
	s.preemptions.noteUnschedulable(a.item)
	s.decisions.rememberFailure(a, decision.Unschedulable, w)
	s.nominations.setNomination(&a.Attempt, a.item, nominate)
	s.report(a.item, v1.PodReasonUnschedulable, w.message, nominate)
}

// unschedulable is implemented by errors that represent a plugin's verdict rather than a failure.
type unschedulable interface {
	error
	Unschedulable() bool
}

// requeueFailed requeues a pod after an attempt that ended with an error, and reports the error. As
// upstream, the pod is retried after its back-off without an event, and loses its nomination. An
// error representing a plugin's verdict is reported as Unschedulable, but the pod also backs off.
func (s *attempts) requeueFailed(a *podAttempt, err error) {
	result, reason, told := Errored, v1.PodReasonSchedulerError, decision.Failed
	if refused := (unschedulable)(nil); errors.As(err, &refused) && refused.Unschedulable() {
		result, reason, told = Unschedulable, v1.PodReasonUnschedulable, decision.Unschedulable
	}
	s.observer().Attempted(a.Profile, result, s.clock().Sub(a.watch))
	s.queue.Failed(a.item, s.now)
	s.decisions.rememberFailure(a, told, &unschedulableReason{message: err.Error()})
	none := ""
	s.nominations.setNomination(&a.Attempt, a.item, &none)
	s.report(a.item, reason, err.Error(), &none)
}

// requeuePlacement requeues the pod of a placement.
func (s *attempts) requeuePlacement(b *placement, err error) {
	s.preemptions.forgetVictim(b.Pod.UID)
	if refused := (*rejection)(nil); errors.As(err, &refused) {
		none := ""
		w := &unschedulableReason{message: refused.Error(), plugins: []string{refused.plugin}}
		if refused.Pending {
			w.pending = w.plugins
		}
		s.requeueUnschedulable(b.podAttempt, w, &none)
	} else {
		s.requeueFailed(b.podAttempt, err)
	}
	s.podGroups.memberLost(b, err)
}

// noteBound checks whether a bound pod completes the quorum of its group.
func (s *attempts) noteBound(b *placement) {
	if g := s.groupOf(b.item); g != nil {
		s.podGroups.updateScheduled(g)
	}
}

// bindAnswered reports a finished binding to preemptions.
func (s *attempts) bindAnswered(b *placement) { s.preemptions.bindAnswered(b) }

// Users see the reason why a pod was not scheduled in the event FailedScheduling and in the
// condition PodScheduled. Pods are tried often, so both are written only if their content is new.

// unschedulableReason is the reason why a pod is not placed. Pods of a class share it.
type unschedulableReason struct {
	message string
	plugins []string
	pending []string // plugins that made the pod wait
	reasons map[string]int
}

// repeatAfter is the time for which identical reports about a pod are suppressed: events with the
// same message, and conditions whose write has not been observed yet. A pod waiting with many other
// pods is tried whenever one of them could be placed. An event for each attempt would hide new
// information.
const repeatAfter = 30 * time.Second

// report reports why a pod is not placed. It records an event, unless the same message was recorded
// within repeatAfter; kube-scheduler records one for every failed attempt. It writes the condition
// only if it differs from the pod's existing or pending condition.
func (s *common) report(item *queue.Item, reason, message string, nominate *string) {
	pod := item.Pod
	if item.Resizes() { // as upstream: the pod is running
		item.Message, item.MessageAt = message, s.now
		return
	}
	if item.Message != message || s.now.Sub(item.MessageAt) >= repeatAfter {
		item.Message, item.MessageAt = message, s.now
		s.addAction(RecordEvent{
			Profile: pod.Spec.SchedulerName, Regarding: Reference(pod), Type: v1.EventTypeWarning,
			Reason: "FailedScheduling", Message: truncated(message),
		})
	}

	condition := &v1.PodCondition{
		Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: pod.Generation,
		LastTransitionTime: metav1.NewTime(s.wallTime()),
	}

	known := s.written(item)
	if known != nil && known.Status == condition.Status {
		// By convention, the transition time changes only with the status.
		condition.LastTransitionTime = known.LastTransitionTime
	}

	// A written but unobserved nomination would otherwise remain, and would look like another
	// client's nomination.
	unseen := s.unseenNomination(item)
	asNominated := nominate == nil || *nominate == pod.Status.NominatedNodeName && (unseen == "" || unseen == *nominate)
	reworded := asNominated && known != nil && known.Status == condition.Status && known.Reason == reason
	if reworded && known.Message == message {
		return
	}

	item.Written = &queue.WrittenCondition{Version: pod.ResourceVersion, At: s.now, Condition: *condition}
	s.addAction(WriteStatus{Pod: pod, Condition: condition, Nominate: nominate, Reworded: reworded})
	if nominate != nil {
		s.noteNominating(item, *nominate)
	}
}

// noteNominating records a pending write of a pod's nomination. It does not record that a
// nomination is cleared: the watch may still show the node written earlier.
func (s *common) noteNominating(item *queue.Item, node string) {
	if node != "" {
		item.Nominating = &queue.Nominating{Node: node, At: s.now}
	}
}

// unseenNomination returns the node last written as the pod's nomination if the pod may still show
// it later, or "". A watch may skip a short-lived state of a pod, so the write counts for a limited
// time only.
func (s *common) unseenNomination(item *queue.Item) string {
	if n := item.Nominating; n != nil && s.now.Sub(n.At) < repeatAfter {
		return n.Node
	}
	return ""
}

// written returns the pod's existing or pending condition, or nil. The condition last written by
// this scheduler counts as pending until the watch has shown another version of the pod.
func (s *common) written(item *queue.Item) *v1.PodCondition {
	pod := item.Pod
	if t := item.Written; t != nil && pod.ResourceVersion != "" && t.Version == pod.ResourceVersion && s.now.Sub(t.At) < repeatAfter {
		return &t.Condition
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1.PodScheduled {
			return c
		}
	}
	return nil
}

// truncated cuts a message to the maximum length for an event.
func truncated(message string) string {
	const longest, rest = 1024, " ..."
	if len(message) <= longest {
		return message
	}
	return message[:longest-len(rest)] + rest
}

// Reference returns a pod's reference for events and requests.
func Reference(pod *v1.Pod) v1.ObjectReference {
	return v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
}

// faultOf converts an error into a serializable error for a journal. It returns a Fault unchanged,
// with its Verdict.
func faultOf(err error) *Fault {
	f, ok := err.(*Fault)
	if !ok {
		f = &Fault{Message: err.Error()}
	}
	return f
}

// compare evaluates every node for a pod bound by another scheduler, in the possible states of the
// nodes at that scheduler's decision. The evaluation is a trial: no pod remains placed, and the
// attempt is not counted.
func (s *attempts) compare(pod *v1.Pod) {
	item := s.queue.Get(pod.UID)
	if s.shadow == nil || item == nil || pod.Spec.NodeName == "" || rules.IsTerminal(pod) {
		return
	}
	p := s.profiles.byName[item.Pod.Spec.SchedulerName]
	a := s.newAttempt(p, item)
	for _, e := range p.begin {
		e.Begin(&a.Attempt)
	}
	evaluation, unclear := s.shadow.Judge(item, pod.Spec.NodeName, func() *decide.Evaluation { return p.Plain().Evaluate(a.Waiting) })
	s.addAction(Compared{pod, pod.Spec.NodeName, evaluation, unclear})
	a.endAttempt(false)
}

// Compared reports another scheduler's placement of a pod served by a profile, with every plugin's
// verdict on every node before the placement. Only a shadow core returns it.
type Compared struct {
	Pod        *v1.Pod
	Node       string
	Evaluation *decide.Evaluation
	// Unclear is set if the other scheduler may have decided the pod in a state of the cluster that
	// the shadow did not evaluate.
	Unclear bool
}

func (a Compared) String() string {
	if a.Unclear {
		return fmt.Sprintf("compared %s on %s: unclear", podName(a.Pod), a.Node)
	}
	return fmt.Sprintf("compared %s on %s", podName(a.Pod), a.Node)
}
