// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestTaintedDeviceLosesItsPods verifies that a pod is evicted if its device is tainted, by the
// driver in the ResourceSlice or by an administrator's DeviceTaintRule. The status of the rule must
// report the eviction, and a pod with another device must stay.
func TestTaintedDeviceLosesItsPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n", nil)
	startController(t, c.kubeconfig, alone)
	for _, name := range []string{"one", "two", "other"} {
		c.uses(name, "gpu-"+name, 0)
	}
	c.tainted("gpu-one", "gpu-two", "gpu-other")
	c.within(time.Minute, "evicted for the taint in the slice", func() bool { return c.leaves("one") })
	if reason := c.podCondition("one", v1.DisruptionTarget).Reason; reason != "DeletionByDeviceTaintManager" {
		t.Errorf("evicted with reason %q", reason)
	}
	c.within(time.Minute, "event", func() bool {
		events, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=one,reason=DeviceTaintManagerEviction"})
		return err == nil && len(events.Items) == 1 && events.Items[0].Source.Component == "device-taint-eviction-controller"
	})
	c.stays("two")

	c.recall("gpu-two")
	c.within(time.Minute, "evicted for the rule", func() bool { return c.leaves("two") })
	c.within(time.Minute, "status of the rule", func() bool {
		rule, err := c.client.ResourceV1().DeviceTaintRules().Get(t.Context(), "recall", metav1.GetOptions{})
		c.must(err)
		return len(rule.Status.Conditions) == 1 && rule.Status.Conditions[0].Reason == "Completed" &&
			rule.Status.Conditions[0].Message == "1 pod evicted since starting the controller."
	})
	c.stays("other")
}

// TestDeviceCountdownSurvivesKills verifies that pods are evicted on time, for a taint in a slice
// and for a rule, although the controller is killed six times during their tolerationSeconds. A
// taint that is removed while no controller runs must not evict a pod.
func TestDeviceCountdownSurvivesKills(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := newCluster(t)
	c.node("n", nil)
	c.uses("one", "gpu-one", 16)
	c.uses("two", "gpu-two", 16)
	c.uses("stays", "gpu-stays", 12)
	p := startController(t, c.kubeconfig, alone)
	began := time.Now()
	slice := c.tainted("gpu-one", "gpu-stays", "gpu-two")
	c.recall("gpu-two")
	for i := range 6 {
		<-time.After(600 * time.Millisecond)
		p.kill()
		if i == 1 {
			slice.Spec.Devices[1].Taints = nil
			_, err := c.client.ResourceV1().ResourceSlices().Update(t.Context(), slice, metav1.UpdateOptions{})
			c.must(err)
		}
		<-time.After(200 * time.Millisecond)
		p = startController(t, c.kubeconfig, alone)
	}
	for _, pod := range []string{"one", "two"} {
		c.within(time.Minute, "evicted", func() bool { return c.leaves(pod) })
		if after := time.Since(began); after < 15*time.Second || after > 18*time.Second {
			t.Errorf("%s evicted %v after the taint, want 16 s", pod, after)
		}
	}
	c.stays("stays")
}

// tainted publishes devices of node n in a ResourceSlice, and taints the first device and the
// device gpu-stays, if any.
func (c *cluster) tainted(names ...string) *resourceapi.ResourceSlice {
	c.Helper()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n-gpus"}}
	slice.Spec = resourceapi.ResourceSliceSpec{Driver: driver, NodeName: ptr.To("n"), Pool: resourceapi.ResourcePool{Name: "n", Generation: 1, ResourceSliceCount: 1}}
	for _, name := range names {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: name})
	}
	slice, err := c.client.ResourceV1().ResourceSlices().Create(c.Context(), slice, metav1.CreateOptions{})
	c.must(err)
	for i := range slice.Spec.Devices {
		if i == 0 || names[i] == "gpu-stays" {
			slice.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "broken", Effect: resourceapi.DeviceTaintEffectNoExecute}}
		}
	}
	slice, err = c.client.ResourceV1().ResourceSlices().Update(c.Context(), slice, metav1.UpdateOptions{})
	c.must(err)
	return slice
}

// recall taints a device of node n by a DeviceTaintRule.
func (c *cluster) recall(device string) {
	c.Helper()
	_, err := c.client.ResourceV1().DeviceTaintRules().Create(c.Context(), &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "recall"},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver), Pool: ptr.To("n"), Device: &device},
			Taint:          resourceapi.DeviceTaint{Key: "recalled", Effect: resourceapi.DeviceTaintEffectNoExecute},
		},
	}, metav1.CreateOptions{})
	c.must(err)
}

const driver = "gpu.example.com"

// uses creates a pod on node n with an allocated device, as a scheduler does. The claim tolerates
// every NoExecute taint for the given seconds.
func (c *cluster) uses(name, device string, seconds int64) {
	c.Helper()
	claim, err := c.client.ResourceV1().ResourceClaims("default").Create(c.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}, metav1.CreateOptions{})
	c.must(err)
	spec := podSpec("n")
	spec.TerminationGracePeriodSeconds = nil // keep the terminating pod for inspection
	spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
	pod, err := c.client.CoreV1().Pods("default").Create(c.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	c.must(err)
	claim.Status = resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: driver, Pool: "n", Device: device, Tolerations: []resourceapi.DeviceToleration{
				{Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute, TolerationSeconds: &seconds},
			}},
		}}},
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}},
	}
	_, err = c.client.ResourceV1().ResourceClaims("default").UpdateStatus(c.Context(), claim, metav1.UpdateOptions{})
	c.must(err)
}
