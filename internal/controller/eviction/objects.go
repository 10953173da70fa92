// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// Reason and Message of the pod's DisruptionTarget condition are identical to upstream.
	Reason  = "DeletionByTaintManager"
	Message = "Taint manager: deleting due to NoExecute taint"

	// NoteAnnotation, on a node, records the start of the node's taints without timeAdded.
	NoteAnnotation = "berth.dev/taints-since"
)

// Pod is the part of a pod that eviction depends on.
type Pod struct {
	Name            types.NamespacedName
	UID             types.UID
	ResourceVersion string
	Node            string // "": not bound yet, so not evicted
	Tolerations     []v1.Toleration
	Bound           time.Time // when the pod was bound
	Terminating     bool      // has a deletionTimestamp, which is never reset
	Marked          bool      // has the DisruptionTarget condition of a taint eviction
	Observed        int64     // its generation, to be written as observedGeneration of the condition

	Claims []ClaimRef `json:",omitempty"` // of devices
	Group  string     `json:",omitempty"` // its PodGroup
}

// PodOf converts an API pod. The result shares the list of tolerations with the API pod.
func PodOf(pod *v1.Pod) Pod {
	return Pod{
		Name:            types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		UID:             pod.UID,
		ResourceVersion: pod.ResourceVersion,
		Node:            pod.Spec.NodeName,
		Tolerations:     pod.Spec.Tolerations,
		Bound:           boundAt(pod),
		Terminating:     pod.DeletionTimestamp != nil,
		Marked:          isMarked(pod),
		Observed:        pod.Generation,
		Claims:          claimsOf(pod),
		Group:           groupOf(pod),
	}
}

// boundAt returns the time the scheduler bound the pod. A pod created with a node, without a
// scheduler, was bound at its creation.
func boundAt(pod *v1.Pod) time.Time {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// isMarked reports whether the pod has the DisruptionTarget condition of a taint eviction, because
// of a node taint or a device taint. Other reasons, such as a preemption, do not count.
func isMarked(pod *v1.Pod) bool {
	c := disruptionTarget(pod)
	return c != nil && c.Status == v1.ConditionTrue &&
		(c.Reason == Reason && c.Message == Message || c.Reason == DeviceReason && c.Message == DeviceMessage)
}

// disruptionTarget returns the pod's condition of that type, or nil.
func disruptionTarget(pod *v1.Pod) *v1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == v1.DisruptionTarget {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Node is the part of a node that eviction depends on.
type Node struct {
	Name            string
	UID             types.UID
	ResourceVersion string
	Taints          []v1.Taint // NoExecute only
	Note            string     // the annotation NoteAnnotation
	// Witness is the time of the last write of the list of taints according to managed fields, in
	// whole seconds. No taint in the list is younger. Witness is zero if every taint has its own
	// time.
	Witness time.Time
	// Turned is the time at which the node last became not-ready, or unreachable, taken from the
	// corresponding NoSchedule taint. Turned is zero if the node has neither of these taints, or
	// both.
	Turned time.Time
}

// NodeOf converts an API node.
func NodeOf(node *v1.Node) Node {
	n := Node{
		Name:            node.Name,
		UID:             node.UID,
		ResourceVersion: node.ResourceVersion,
		Note:            node.Annotations[NoteAnnotation],
	}

	timeless := false
	n.Turned = turnedAt(node.Spec.Taints)
	for _, taint := range node.Spec.Taints {
		if taint.Effect == v1.TaintEffectNoExecute {
			n.Taints = append(n.Taints, taint)
			timeless = timeless || taint.TimeAdded.IsZero()
		}
	}

	if timeless {
		n.Witness = latestWrite(node.ManagedFields)
	}
	return n
}

// turnedAt returns Node.Turned. The lifecycle controller sets the times of its NoSchedule taints,
// and replaces one taint by the other when a node turns.
func turnedAt(taints []v1.Taint) (at time.Time) {
	for i := range taints {
		t := &taints[i]
		if t.Effect != v1.TaintEffectNoSchedule || t.TimeAdded.IsZero() || oppositeTaint(t) == nil {
			continue
		}
		if !at.IsZero() {
			return time.Time{}
		}
		at = t.TimeAdded.Time
	}
	return at
}

// latestWrite returns Node.Witness: the newest time of a managed-fields entry that owns
// spec.taints. Entries of subresources do not count, and neither do those without a time.
func latestWrite(entries []metav1.ManagedFieldsEntry) (latest time.Time) {
	for _, entry := range entries {
		if entry.Time == nil || entry.Subresource != "" || entry.FieldsV1 == nil || !entry.Time.After(latest) {
			continue
		}
		var owned struct {
			Spec struct {
				Taints json.RawMessage `json:"f:taints"`
			} `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned) == nil && owned.Spec.Taints != nil {
			latest = entry.Time.Time
		}
	}
	return latest
}
