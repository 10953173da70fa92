// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"encoding/json"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
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
	c := rules.PodCondition(&pod.Status, v1.PodScheduled)
	if c == nil || c.Status != v1.ConditionTrue || c.LastTransitionTime.IsZero() {
		return pod.CreationTimestamp.Time
	}
	return c.LastTransitionTime.Time
}

// isMarked reports whether the pod has the DisruptionTarget condition of a taint eviction, because
// of a node taint or a device taint. Other reasons, such as a preemption, do not count.
func isMarked(pod *v1.Pod) bool {
	c := rules.PodCondition(&pod.Status, v1.DisruptionTarget)
	return c != nil && c.Status == v1.ConditionTrue &&
		(c.Reason == Reason && c.Message == Message || c.Reason == DeviceReason && c.Message == DeviceMessage)
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

const (
	// DeviceReason and DeviceMessage are Reason and Message for a device's taint.
	DeviceReason  = "DeletionByDeviceTaintManager"
	DeviceMessage = "Device Taint manager: deleting due to NoExecute taint"
)

// Device identifies a device.
type Device struct{ Driver, Pool, Name string }

// String joins the three parts with slashes, as in events.
func (d Device) String() string { return d.Driver + "/" + d.Pool + "/" + d.Name }

// Pool identifies a pool of devices.
type Pool struct{ Driver, Name string }

// poolOf returns the pool of the device.
func (d Device) poolOf() Pool { return Pool{d.Driver, d.Pool} }

// ClaimRef is a ResourceClaim named by a pod.
type ClaimRef struct {
	Name string
	Own  bool // the claim was created for the pod or for its group
}

// Claim is the part of a ResourceClaim that eviction depends on.
type Claim struct {
	Name       types.NamespacedName
	UID        types.UID
	Owner      types.UID   `json:",omitempty"` // pod for which the claim was created
	OwnerGroup string      `json:",omitempty"` // PodGroup for which the claim was created
	For        []types.UID `json:",omitempty"` // pods in the claim's reservations
	ForGroups  []string    `json:",omitempty"` // names of PodGroups in the claim's reservations
	Uses       []Use       `json:",omitempty"` // allocated devices
}

// Use is a device allocated to a claim, with the claim's tolerations for it.
type Use struct {
	Device      Device
	Tolerations []resourcev1.DeviceToleration `json:",omitempty"`
}

// ClaimOf converts an API claim.
func ClaimOf(claim *resourcev1.ResourceClaim) Claim {
	c := Claim{Name: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, UID: claim.UID}
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil {
		c.Owner = owner.UID
		if owner.Kind == "PodGroup" {
			c.OwnerGroup = owner.Name
		}
	}

	for _, consumer := range claim.Status.ReservedFor {
		c.For = append(c.For, consumer.UID)
		if consumer.Resource == "podgroups" {
			c.ForGroups = append(c.ForGroups, consumer.Name)
		}
	}

	if claim.Status.Allocation != nil {
		for i := range claim.Status.Allocation.Devices.Results {
			result := &claim.Status.Allocation.Devices.Results[i]
			c.Uses = append(c.Uses, Use{Device: Device{result.Driver, result.Pool, result.Device}, Tolerations: result.Tolerations})
		}
	}
	return c
}

// servesPod reports whether a pod with this reference uses the claim's devices. A claim of that
// name may have been created for another pod, or be reserved only for other pods.
func (c *Claim) servesPod(p *Pod, ref ClaimRef) bool {
	if ref.Own && c.Owner != p.UID && (p.Group == "" || c.OwnerGroup != p.Group) {
		return false
	}
	return slices.Contains(c.For, p.UID) || p.Group != "" && slices.Contains(c.ForGroups, p.Group)
}

// claimsOf returns the claims named by the pod, including claims for its extended resources.
func claimsOf(pod *v1.Pod) (refs []ClaimRef) {
	for name, own := range resourceclaim.PodClaims(pod) {
		refs = append(refs, ClaimRef{Name: name, Own: own})
	}
	return refs
}

// groupOf returns the name of the pod's PodGroup, or "".
func groupOf(pod *v1.Pod) string {
	if pod.Spec.SchedulingGroup == nil {
		return ""
	}
	return ptr.Deref(pod.Spec.SchedulingGroup.PodGroupName, "")
}

// Slice is the part of a ResourceSlice that eviction depends on.
type Slice struct {
	Name       string
	Pool       Pool
	Node       string `json:",omitempty"` // node that has the devices; "" if the slice is not bound to a node
	Generation int64  `json:",omitempty"`
	Devices    []SliceDevice
}

// SliceDevice is a device of a slice with its NoExecute taints.
type SliceDevice struct {
	Name   string
	Taints []v1.Taint `json:",omitempty"`
}

// SliceOf converts an API slice.
func SliceOf(slice *resourcev1.ResourceSlice) Slice {
	s := Slice{
		Name: slice.Name, Pool: Pool{slice.Spec.Driver, slice.Spec.Pool.Name}, Node: ptr.Deref(slice.Spec.NodeName, ""),
		Generation: slice.Spec.Pool.Generation,
	}
	for i := range slice.Spec.Devices {
		device := SliceDevice{Name: slice.Spec.Devices[i].Name}
		for _, taint := range slice.Spec.Devices[i].Taints {
			if taint.Effect == resourcev1.DeviceTaintEffectNoExecute {
				device.Taints = append(device.Taints, taintOf(taint))
			}
		}
		s.Devices = append(s.Devices, device)
	}
	return s
}

// taintOf converts a device's taint to a node taint.
func taintOf(taint resourcev1.DeviceTaint) v1.Taint {
	return v1.Taint{Key: taint.Key, Value: taint.Value, Effect: v1.TaintEffect(taint.Effect), TimeAdded: taint.TimeAdded}
}

// Rule is the part of a DeviceTaintRule that evictions and the rule's status depend on.
type Rule struct {
	Name       string
	UID        types.UID
	Generation int64
	Selector   *resourcev1.DeviceTaintSelector `json:",omitempty"` // nil: no device
	Taint      v1.Taint
	Condition  metav1.Condition `json:",omitzero"` // the condition EvictionInProgress
}

// RuleOf converts an API rule.
func RuleOf(rule *resourcev1.DeviceTaintRule) Rule {
	r := Rule{
		Name: rule.Name, UID: rule.UID, Generation: rule.Generation, Selector: rule.Spec.DeviceSelector, Taint: taintOf(rule.Spec.Taint),
	}
	for _, condition := range rule.Status.Conditions {
		if condition.Type == resourcev1.DeviceTaintConditionEvictionInProgress {
			r.Condition = condition
		}
	}
	return r
}

// selectsPool reports whether the rule can select devices of the pool.
func (r *Rule) selectsPool(pool Pool) bool {
	s := r.Selector
	return s != nil && (s.Driver == nil || *s.Driver == pool.Driver) && (s.Pool == nil || *s.Pool == pool.Name)
}

// selectsDevice reports whether the rule selects the device. A selector without fields selects all
// devices.
func (r *Rule) selectsDevice(device Device) bool {
	return r.selectsPool(device.poolOf()) && (r.Selector.Device == nil || *r.Selector.Device == device.Name)
}

// evictsPods reports whether the rule evicts pods.
func (r *Rule) evictsPods() bool { return r.Taint.Effect == v1.TaintEffectNoExecute }

// Devices is the result of reading device objects.
type Devices struct {
	Claims []Claim `json:",omitempty"`
	Slices []Slice `json:",omitempty"`
	Rules  []Rule  `json:",omitempty"`
}
