// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
)

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
