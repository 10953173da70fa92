// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/config"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

// TestConditionNamesTheDevice verifies that the condition and the event of a pod unable to preempt
// for devices name a device and the reason, but no pod of another namespace. Without the feature
// gate, the message is upstream's.
func TestConditionNamesTheDevice(t *testing.T) {
	const lacks = "0/2 nodes are available: 2 cannot allocate all claims. "
	for name, row := range map[string]struct {
		gate, never, keepsBudgets bool
		namespace                 string // of the device's user
		priority                  int32
		want                      string
	}{
		"gate off": {
			false, false, false, "default", 9,
			lacks + "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
		},
		"own namespace": {
			true, false, false, "default", 9,
			lacks + "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod. " +
				"Device d/n/gpu-0 on node n is held by pod default/user, which has priority 9 (this pod: 5).",
		},
		"other namespace": {
			true, false, false, "tenant", 9,
			lacks + "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod. " +
				"Device d/n/gpu-0 on node n is held by a pod of another namespace, which has priority 9 (this pod: 5).",
		},
		"preemptionPolicy": {
			true, true, false, "default", 0,
			lacks + "preemption: not eligible due to preemptionPolicy=Never. " +
				"Device d/n/gpu-0 on node n is held by pod default/user, which a preemptionPolicy, a disruption budget or its pod group protects.",
		},
		"disruption budget": {
			true, false, true, "default", 0,
			lacks + "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, " +
				"1 preemption would break a PodDisruptionBudget. " +
				"Device d/n/gpu-0 on node n is held by pod default/user, which a preemptionPolicy, a disruption budget or its pod group protects.",
		},
	} {
		c, err := config.Default(config.Options{PreemptDevices: row.gate})
		if err != nil {
			t.Fatal(err)
		}
		c.Profiles[0].KeepBudgets = row.keepsBudgets
		core, err := New(Options{Profiles: []Profile{{Profile: c.Profiles[0]}}})
		if err != nil {
			t.Fatal(err)
		}
		r := &resizing{Core: core, now: begin}
		claim := func(namespace, name string) *resourcev1.ResourceClaim {
			return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("claim-" + name)},
				Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r",
					Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}}}
		}
		user, waiting := placedPod("user", "1", row.priority), aPod("waiting", "1")
		user.Namespace, user.Labels, *waiting.Spec.Priority = row.namespace, map[string]string{"app": "user"}, 5
		if row.never {
			waiting.Spec.PreemptionPolicy = new(v1.PreemptNever)
		}
		for _, p := range []*v1.Pod{user, waiting} {
			p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new(p.Name)}}
		}
		held := claim(row.namespace, "user")
		held.Status = resourcev1.ResourceClaimStatus{
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "d", Pool: "n", Device: "gpu-0"}}}},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "user", UID: user.UID}},
		}
		r.tell(Follows{}, Seen{Nodes, aNode("n", "9")}, Seen{Nodes, aNode("bare", "9")},
			Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}},
			Seen{ResourceSlices, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{
				Driver: "d", NodeName: new("n"), Pool: resourcev1.ResourcePool{Name: "n", ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "gpu-0"}}}}},
			Seen{ResourceClaims, held}, Seen{ResourceClaims, claim("default", "waiting")},
			Seen{DisruptionBudgets, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "budget"},
				Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: user.Labels}}}},
			Seen{Pods, user}, Seen{Pods, waiting}, Led{})

		var condition, event string
		for _, a := range r.actions {
			switch a := a.(type) {
			case WriteStatus:
				condition = a.Condition.Message
			case RecordEvent:
				event = a.Message
			}
		}
		if condition != row.want || event != row.want {
			t.Errorf("%s: condition %q, event %q, want %q", name, condition, event, row.want)
		}
	}
}
