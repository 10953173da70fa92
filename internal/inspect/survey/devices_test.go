// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
)

// heldWorld has a device held by a more important pod of another namespace.
const heldWorld = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus}
spec:
  driver: gpu.example.com
  nodeName: node-1
  pool: {name: node-1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: held, namespace: tenant, uid: c1}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu, allocationMode: ExactCount, count: 1}}]}}
status:
  allocation: {devices: {results: [{request: r, driver: gpu.example.com, pool: node-1, device: gpu-0}]}}
  reservedFor: [{resource: pods, name: user, uid: u1}]
---
apiVersion: v1
kind: Pod
metadata: {name: user, namespace: tenant, uid: u1, resourceVersion: "1"}
spec:
  nodeName: node-1
  priority: 10
  resourceClaims: [{name: r, resourceClaimName: held}]
  containers: [{name: c, image: i}]
status: {phase: Running}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: wanted, namespace: x, uid: c2}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu, allocationMode: ExactCount, count: 1}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: waits, namespace: x, uid: w1, resourceVersion: "1"}
spec:
  priority: 5
  resourceClaims: [{name: r, resourceClaimName: wanted}]
  containers: [{name: c, image: i}]
status: {phase: Pending}
`

// TestKeptDevicesAreExplained verifies that explain and pending name the device that preemption
// does not release and, unlike the message of the scheduler, its user in another namespace.
func TestKeptDevicesAreExplained(t *testing.T) {
	const device = "Device gpu.example.com/node-1/gpu-0 on node node-1 is held by "
	const unnamed = device + "a pod of another namespace, which has priority 10 (this pod: 5)"
	const detail = "tenant/user (claim held: preemption does not release gpu.example.com/node-1/gpu-0, since user has priority 10 (this pod: 5))"
	for _, gate := range []bool{true, false} {
		set, err := manifest.Read([]string{"-"}, strings.NewReader(heldWorld), manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Default(config.Options{PreemptDevices: gate})
		if err != nil {
			t.Fatal(err)
		}
		w, err := simulate.Open(set, simulate.Options{Profiles: c.Profiles})
		if err != nil {
			t.Fatal(err)
		}
		e, err := explain.Of(w, explain.Options{Namespace: "x", Name: "waits", Node: "node-1"})
		if err != nil {
			t.Fatal(err)
		}
		var page bytes.Buffer
		if err := e.Write(&page, ""); err != nil {
			t.Fatal(err)
		}
		p, err := survey.PendingOf(w, survey.Scope{Namespace: "x"}, simulate.Source{})
		if err != nil {
			t.Fatal(err)
		}
		for what, has := range map[string]bool{
			"message":      strings.Contains(e.Message, unnamed),
			"page":         strings.Contains(page.String(), detail),
			"node":         strings.Contains(e.Node.Preempt, unnamed),
			"pending pods": strings.Contains(p.Workloads[0].Detail, detail),
		} {
			if has != gate {
				t.Errorf("gate %t, %s: %t\n%s\n%s", gate, what, has, page.String(), p.Workloads[0].Detail)
			}
		}
		if strings.Contains(e.Message, "user") {
			t.Errorf("the message names a pod of another namespace: %s", e.Message)
		}
	}
}
