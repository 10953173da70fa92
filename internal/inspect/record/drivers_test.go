// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestWhatDriversReadIsLeftOut verifies that parameters of devices and volumes, which may contain
// anything, are not recorded.
func TestWhatDriversReadIsLeftOut(t *testing.T) {
	raw := runtime.RawExtension{Raw: []byte(`{"key":"s3cret"}`)}
	opaque := resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: "gpu.example.com", Parameters: raw}}
	spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Config: []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: opaque}}}}
	secret := map[string]string{"key": "s3cret"}
	for _, o := range []metav1.Object{
		&resourcev1.DeviceClass{Spec: resourcev1.DeviceClassSpec{Config: []resourcev1.DeviceClassConfiguration{{DeviceConfiguration: *opaque.DeepCopy()}}}},
		&resourcev1.ResourceClaim{Spec: *spec.DeepCopy(), Status: resourcev1.ResourceClaimStatus{
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Config: []resourcev1.DeviceAllocationConfiguration{{DeviceConfiguration: *opaque.DeepCopy()}}}},
			Devices:    []resourcev1.AllocatedDeviceStatus{{Data: raw.DeepCopy()}},
		}},
		&resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: *spec.DeepCopy()}},
		&v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{VolumeAttributes: secret}}}},
		&storagev1.StorageClass{Parameters: secret},
		&v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{VolumeAttributes: secret}}}}}},
	} {
		Slim(o)
		if text, err := json.Marshal(o); err != nil || strings.Contains(string(text), "s3cret") {
			t.Errorf("%T: %s, %v", o, text, err)
		}
	}
}
