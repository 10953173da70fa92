// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/utils/ptr"
)

// Berth has some fixes of Kubernetes v1.38 that v1.37.2, the compared version, does not have. To
// compare everything else exactly, v1.37.2 receives equivalent objects that avoid these bugs:
//
//   - An empty selector of a topology spread constraint (kubernetes#141340) or of a budget
//     (#141785) selects all pods, but v1.37.2 treats it as absent: the replacement selects all pods
//     by a requirement.
//   - A budget never covers a pod without labels (#141785): such pods get a label unused by any
//     selector.
//   - v1.37.2 treats a device as free if claims hold shares of it and it no longer permits shares
//     (#140798): the claims get the whole device instead of shares.
//   - A request for all devices fails with an error in v1.37.2 at a node with an incomplete or
//     invalid pool (#141898): the error is converted to the rejection of the node as in v1.38.

// unusedLabel is a label that selectors in a world never use.
const unusedLabel = "conformance.example.com/unused"

// everyPod is a non-empty selector of all pods.
var everyPod = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
	{Key: unusedLabel + "-either", Operator: metav1.LabelSelectorOpDoesNotExist}}}

// isEmpty reports whether a selector selects all pods without a requirement.
func isEmpty(s *metav1.LabelSelector) bool {
	return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0
}

// podAhead returns the pod as passed to upstream.
func podAhead(pod *v1.Pod) *v1.Pod {
	spreads := func(c v1.TopologySpreadConstraint) bool { return isEmpty(c.LabelSelector) }
	if len(pod.Labels) > 0 && !slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, spreads) {
		return pod
	}
	pod = pod.DeepCopy()
	if len(pod.Labels) == 0 {
		pod.Labels = map[string]string{unusedLabel: ""}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		if c := &pod.Spec.TopologySpreadConstraints[i]; spreads(*c) {
			c.LabelSelector = everyPod
		}
	}
	return pod
}

// ahead returns the world as passed to upstream.
func (w *World) ahead() *World {
	shown := *w
	for _, pods := range []*[]*v1.Pod{&shown.Placed, &shown.Nominated, &shown.Pending} {
		*pods = slices.Clone(*pods)
		for i := range *pods {
			(*pods)[i] = podAhead((*pods)[i])
		}
	}
	shown.Others = slices.Clone(w.Others)
	for i, o := range shown.Others {
		switch o := o.(type) {
		case *policyv1.PodDisruptionBudget:
			if isEmpty(o.Spec.Selector) {
				o = o.DeepCopy()
				o.Spec.Selector = everyPod
				shown.Others[i] = o
			}
		case *resourcev1.ResourceClaim:
			shown.Others[i] = claimAhead(w, o)
		}
	}
	return &shown
}

// claimAhead returns the claim as passed to upstream.
func claimAhead(w *World, claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	if claim.Status.Allocation == nil {
		return claim
	}
	for i, result := range claim.Status.Allocation.Devices.Results {
		if result.ShareID != nil && isExclusive(w, result) {
			claim = claim.DeepCopy()
			claim.Status.Allocation.Devices.Results[i].ShareID = nil
			claim.Status.Allocation.Devices.Results[i].ConsumedCapacity = nil
		}
	}
	return claim
}

// isExclusive reports whether the device exists and permits only one allocation.
func isExclusive(w *World, result resourcev1.DeviceRequestAllocationResult) bool {
	newest, exclusive := int64(-1), false
	for _, slice := range ofKind[*resourcev1.ResourceSlice](w) {
		if of := slice.Spec; of.Driver == result.Driver && of.Pool.Name == result.Pool && of.Pool.Generation > newest {
			for _, device := range of.Devices {
				if device.Name == result.Device {
					newest, exclusive = of.Pool.Generation, !ptr.Deref(device.AllowMultipleAllocations, false)
				}
			}
		}
	}
	return exclusive
}

// statusAhead converts a status of v1.37.2 to the status of v1.38.
func statusAhead(s *fwk.Status) *fwk.Status {
	if s.Code() != fwk.Error || !strings.Contains(s.Message(), ": asks for all devices, but resource pool ") {
		return s
	}
	reason := strings.TrimPrefix(s.AsError().Error(), `running "DynamicResources" filter plugin: `) // keep only the plugin's own message
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason).WithPlugin(dynamicresources.Name)
}
