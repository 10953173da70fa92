package e2eeviction

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcebeta "k8s.io/api/resource/v1beta2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestTaintedDeviceLosesItsPods taints a device while pods use it: in its ResourceSlice, as its
// driver does, and by a DeviceTaintRule, as an administrator does. kube-controller-manager has a
// controller of its own for that, which keeps running beside Berth and runs in the embedded control
// plane. A pod of another device stays.
func TestTaintedDeviceLosesItsPods(t *testing.T) {
	t.Parallel()
	c := newClusterWith(t, "--feature-gates=DRADeviceTaintRules=true", "--runtime-config=resource.k8s.io/v1beta2=true")
	c.node("n", nil)
	startController(t, c.kubeconfig, alone)
	for _, name := range []string{"one", "two", "other"} {
		c.uses(name, "gpu-"+name)
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n-gpus"}}
	slice.Spec = resourceapi.ResourceSliceSpec{Driver: driver, NodeName: ptr.To("n"), Pool: resourceapi.ResourcePool{Name: "n", Generation: 1, ResourceSliceCount: 1}}
	for _, name := range []string{"gpu-one", "gpu-two", "gpu-other"} {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: name})
	}
	slice, err := c.client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{})
	c.must(err)

	slice.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "broken", Effect: resourceapi.DeviceTaintEffectNoExecute}}
	_, err = c.client.ResourceV1().ResourceSlices().Update(t.Context(), slice, metav1.UpdateOptions{})
	c.must(err)
	c.within(time.Minute, "evicted for the taint in the slice", func() bool { return c.leaves("one") })
	if reason := c.podCondition("one", v1.DisruptionTarget).Reason; reason != "DeletionByDeviceTaintManager" {
		t.Errorf("evicted with reason %q", reason)
	}
	c.stays("two")

	_, err = c.client.ResourceV1beta2().DeviceTaintRules().Create(t.Context(), &resourcebeta.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "recall"},
		Spec: resourcebeta.DeviceTaintRuleSpec{
			DeviceSelector: &resourcebeta.DeviceTaintSelector{Driver: ptr.To(driver), Pool: ptr.To("n"), Device: ptr.To("gpu-two")},
			Taint:          resourcebeta.DeviceTaint{Key: "recalled", Effect: resourcebeta.DeviceTaintEffectNoExecute},
		},
	}, metav1.CreateOptions{})
	c.must(err)
	c.within(time.Minute, "evicted for the rule", func() bool { return c.leaves("two") })
	c.stays("other")
}

const driver = "gpu.example.com"

// uses creates a pod on node n that a device is allocated to, as a scheduler does.
func (c *cluster) uses(name, device string) {
	c.Helper()
	claim, err := c.client.ResourceV1().ResourceClaims("default").Create(c.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}, metav1.CreateOptions{})
	c.must(err)
	spec := podSpec("n")
	spec.TerminationGracePeriodSeconds = nil // it stays to be looked at
	spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
	pod, err := c.client.CoreV1().Pods("default").Create(c.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	c.must(err)
	claim.Status = resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: driver, Pool: "n", Device: device},
		}}},
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}},
	}
	_, err = c.client.ResourceV1().ResourceClaims("default").UpdateStatus(c.Context(), claim, metav1.UpdateOptions{})
	c.must(err)
}
