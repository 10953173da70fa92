// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file reports why a pod was not scheduled, in the event FailedScheduling and in the condition
// PodScheduled. Pods are tried often, so both are written only if their content is new.

// unschedulableReason is the reason why a pod is not placed. Pods of a class share it.
type unschedulableReason struct {
	message string
	plugins []string
	pending []string // plugins that made the pod wait
	reasons map[string]int
	retry   bool // the pod is retried after its back-off without an event
}

// repeatAfter is the time for which identical reports about a pod are suppressed: events with the
// same message, and conditions whose write has not been observed yet. A pod waiting with many other
// pods is tried whenever one of them could be placed. An event for each attempt would hide new
// information.
const repeatAfter = 30 * time.Second

// report reports why a pod is not placed. It records an event, unless the same message was recorded
// within repeatAfter; kube-scheduler records one for every failed attempt. It writes the condition
// only if it differs from the pod's existing or pending condition, or if ticket awaits the write.
func (s *common) report(item *queue.Item, reason, message string, nominate *string, ticket Ticket) {
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
	reworded := ticket == 0 && asNominated && known != nil && known.Status == condition.Status && known.Reason == reason
	if reworded && known.Message == message {
		return
	}

	item.Written = &queue.WrittenCondition{Version: pod.ResourceVersion, At: s.now, Condition: *condition}
	s.addAction(WriteStatus{Ticket: ticket, Pod: pod, Condition: condition, Nominate: nominate, Reworded: reworded})
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
	return rules.PodCondition(&pod.Status, v1.PodScheduled)
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
