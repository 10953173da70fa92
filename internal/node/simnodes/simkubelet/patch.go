// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// The patches are strategic merge patches, like a kubelet's. They contain only changed fields. They
// merge conditions by type, so that conditions of other writers stay. They have the UID as a
// precondition, so that a pod is never mistaken for a later pod of the same name. They are built
// directly: comparing two whole objects by reflection costs more than everything else that a
// simulated kubelet does.

// podPatch returns a patch that turns the last known status in the API (was) into the new status
// (is). It returns nil if nothing changed.
func podPatch(uid types.UID, was, is *v1.PodStatus) []byte {
	status := map[string]any{}
	set := func(key string, changed bool, value any) {
		if changed {
			status[key] = value
		}
	}

	set("observedGeneration", was.ObservedGeneration != is.ObservedGeneration, is.ObservedGeneration)
	set("phase", was.Phase != is.Phase, is.Phase)
	set("reason", was.Reason != is.Reason, orNull(is.Reason))
	set("message", was.Message != is.Message, orNull(is.Message))
	set("hostIP", was.HostIP != is.HostIP, is.HostIP)
	// Addresses never change, so checking their presence is enough.
	set("hostIPs", len(was.HostIPs) != len(is.HostIPs), is.HostIPs)
	set("podIP", was.PodIP != is.PodIP, is.PodIP)
	set("podIPs", len(was.PodIPs) != len(is.PodIPs), is.PodIPs)

	// The start time is set once and never changes.
	set("startTime", was.StartTime == nil && is.StartTime != nil, is.StartTime)
	set("initContainerStatuses", !semanticEqual(was.InitContainerStatuses, is.InitContainerStatuses), is.InitContainerStatuses)
	set("containerStatuses", !semanticEqual(was.ContainerStatuses, is.ContainerStatuses), is.ContainerStatuses)
	set("ephemeralContainerStatuses", !semanticEqual(was.EphemeralContainerStatuses, is.EphemeralContainerStatuses),
		is.EphemeralContainerStatuses)
	var conditions []any

	for i := range is.Conditions {
		c := &is.Conditions[i]
		if old := rules.PodCondition(was, c.Type); old == nil || !semanticEqual(old, c) {
			conditions = append(conditions, conditionPatch{
				Type: string(c.Type), Status: c.Status, Reason: orNull(c.Reason), Message: orNull(c.Message),
				LastTransitionTime: c.LastTransitionTime, ObservedGeneration: c.ObservedGeneration,
			})
		}
	}

	// A removed condition, such as one about a resize, must be deleted by name: a strategic merge
	// patch keeps omitted conditions.
	for i := range was.Conditions {
		if rules.PodCondition(is, was.Conditions[i].Type) == nil {
			conditions = append(conditions, map[string]any{"type": was.Conditions[i].Type, "$patch": "delete"})
		}
	}

	set("conditions", len(conditions) > 0, conditions)
	if len(status) == 0 {
		return nil
	}
	return mustMarshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": status})
}

// nodePatch returns a patch that adds the labels and changes the status from was to is. It returns
// nil if nothing changed. Conditions are compared by index, so is.Conditions must begin with the
// conditions in was.Conditions, in the same order.
func nodePatch(uid types.UID, labels map[string]string, was, is *v1.NodeStatus) []byte {
	status := map[string]any{}
	set := func(key string, changed bool, value any) {
		if changed {
			status[key] = value
		}
	}

	set("capacity", !semanticEqual(was.Capacity, is.Capacity), resourcesPatch(was.Capacity, is.Capacity))
	set("allocatable", !semanticEqual(was.Allocatable, is.Allocatable), resourcesPatch(was.Allocatable, is.Allocatable))
	set("addresses", !semanticEqual(was.Addresses, is.Addresses), is.Addresses)
	set("daemonEndpoints", was.DaemonEndpoints != is.DaemonEndpoints, is.DaemonEndpoints)
	set("nodeInfo", !semanticEqual(was.NodeInfo, is.NodeInfo), is.NodeInfo)
	var conditions []conditionPatch

	for i := range is.Conditions {
		c := &is.Conditions[i]
		if i < len(was.Conditions) && semanticEqual(&was.Conditions[i], c) {
			continue
		}
		conditions = append(conditions, conditionPatch{
			Type: string(c.Type), Status: c.Status, Reason: orNull(c.Reason), Message: orNull(c.Message),
			LastTransitionTime: c.LastTransitionTime, LastHeartbeatTime: &c.LastHeartbeatTime,
		})
	}

	set("conditions", len(conditions) > 0, conditions)
	if len(status) == 0 && len(labels) == 0 {
		return nil
	}

	// The API server refuses a patch with another UID, which makes it a precondition.
	meta := map[string]any{"uid": uid}
	if len(labels) > 0 {
		meta["labels"] = labels
	}

	patch := map[string]any{"metadata": meta}
	if len(status) > 0 {
		patch["status"] = status
	}
	return mustMarshal(patch)
}

// resourcesPatch contains new and changed resources, and null for removed ones. In a merge patch,
// null removes a field.
func resourcesPatch(was, is v1.ResourceList) map[v1.ResourceName]any {
	patch := map[v1.ResourceName]any{}
	for name, quantity := range is {
		if old, ok := was[name]; !ok || !old.Equal(quantity) {
			patch[name] = quantity
		}
	}
	for name := range was {
		if _, ok := is[name]; !ok {
			patch[name] = nil
		}
	}
	return patch
}

// conditionPatch writes null for an empty reason or message: in a merge patch, an omitted field
// keeps its old value. The API's own type omits empty fields.
type conditionPatch struct {
	Type               string             `json:"type"`
	Status             v1.ConditionStatus `json:"status"`
	Reason             *string            `json:"reason"`
	Message            *string            `json:"message"`
	LastTransitionTime metav1.Time        `json:"lastTransitionTime"`
	LastHeartbeatTime  *metav1.Time       `json:"lastHeartbeatTime,omitempty"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
}

// orNull returns nil for an empty string.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// semanticEqual compares by meaning: 1 and 1000m CPU are equal, and so are nil and empty lists.
func semanticEqual(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

// mustMarshal panics on types that JSON cannot represent; the patches contain none.
func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
