// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
)

// TestADeviceIsClaimed verifies that a claim is allocated and reserved before its pod is bound. A
// second pod must wait for the device, and get it after the first pod has left.
func TestADeviceIsClaimed(t *testing.T) {
	apply(t, `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-2-gpus}
spec:
  driver: gpu.example.com
  nodeName: node-2
  pool: {name: node-2, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
`)
	claims := "spec resourceClaims: [{name: gpu, resourceClaimTemplateName: one-gpu}]"
	uses := "container resources: {claims: [{name: gpu}]}"
	apply(t, pod("device-first", "", claims, uses))
	awaits(t, patience, "pod/device-first", placedOn, "node-2")
	claim := get(t, "pod/device-first", "{.status.resourceClaimStatuses[0].resourceClaimName}")
	if got := get(t, "resourceclaim/"+claim, "{.status.allocation.devices.results[0].device} {.status.reservedFor[0].name}"); got != "gpu-0 device-first" {
		t.Errorf("the claim says %q", got)
	}
	apply(t, pod("device-second", "", claims, uses))
	awaits(t, patience, "pod/device-second", "{.status.conditions[0].reason}", "Unschedulable")
	if message := get(t, "pod/device-second", whyNot); !strings.Contains(message, "3 cannot allocate all claims") && !strings.Contains(message, "cannot allocate all claims") {
		t.Errorf("the second pod says %q", message)
	}
	kubectl(t, "delete", "pod", "device-first", "--now")
	awaits(t, patience, "pod/device-second", placedOn, "node-2")
	kubectl(t, "delete", "pod", "device-second", "--now")
	kubectl(t, "delete", "resourceclaimtemplate/one-gpu", "resourceslice/node-2-gpus", "deviceclass/gpu")
}
