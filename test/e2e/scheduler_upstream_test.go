// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestASharedClaimIsProtected verifies that a claim shared by simultaneously created pods has its
// finalizer, is allocated once, and is reserved for each pod. A deletion of the claim must not free
// the device while it is in use.
func TestASharedClaimIsProtected(t *testing.T) {
	const pods = 30
	apply(t, `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: shared}
spec: {selectors: [{cel: {expression: 'device.driver == "shared.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: shared-devices}
spec:
  driver: shared.example.com
  nodeName: node-2
  pool: {name: shared, generation: 1, resourceSliceCount: 1}
  devices: [{name: only}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared-claim}
spec: {devices: {requests: [{name: d, exactly: {deviceClassName: shared}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: other-claim}
spec: {devices: {requests: [{name: d, exactly: {deviceClassName: shared}}]}}
`)
	claims := func(name string) []string {
		return []string{"spec resourceClaims: [{name: d, resourceClaimName: " + name + "}]", "container resources: {claims: [{name: d}]}"}
	}
	var all strings.Builder
	for i := range pods {
		all.WriteString(pod(fmt.Sprintf("shares-%d", i), "", claims("shared-claim")...) + "\n---\n")
	}
	apply(t, all.String())
	for i := range pods {
		awaits(t, patience, fmt.Sprintf("pod/shares-%d", i), placedOn, "node-2")
	}
	if got := get(t, "resourceclaim/shared-claim", "{.metadata.finalizers[*]} {.status.allocation.devices.results[*].device}"); got != "resource.kubernetes.io/delete-protection only" {
		t.Errorf("the claim says %q", got)
	}
	if got := strings.Fields(get(t, "resourceclaim/shared-claim", "{.status.reservedFor[*].name}")); len(got) != pods {
		t.Errorf("it is reserved for %v", got)
	}
	kubectl(t, "delete", "resourceclaim", "shared-claim", "--wait=false")
	apply(t, pod("other", "", claims("other-claim")...))
	awaits(t, patience, "pod/other", "{.status.conditions[0].reason}", "Unschedulable")
	if got := get(t, "resourceclaim/shared-claim", "{.status.allocation.devices.results[*].device}"); got != "only" {
		t.Errorf("the claim was deleted under its pods; it has %q", got)
	}
	kubectl(t, "delete", "pods", "-l", "app in (shares)", "--now")
	awaits(t, 5*patience, "pod/other", placedOn, "node-2")
	kubectl(t, "delete", "pod", "other", "--now")
	kubectl(t, "delete", "resourceclaim/other-claim", "resourceslice/shared-devices", "deviceclass/shared")
}

// TestANominationEndsWithItsNode verifies that a pod nominated to a node loses the nomination and
// is retried when the node is deleted.
func TestANominationEndsWithItsNode(t *testing.T) {
	apply(t, `
apiVersion: v1
kind: Node
metadata: {name: short-lived, labels: {pool: short}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: hopeful}
value: 1000
`)
	// Without a kubelet the victim does not terminate.
	kubectl(t, "patch", "node", "short-lived", "--subresource=status", `--patch={"status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}}}`)
	there := []string{"spec nodeSelector: {pool: short}", "spec tolerations: [{operator: Exists}]", "container resources: {requests: {cpu: 800m}}"}
	apply(t, pod("hopeful-victim", "", there...))
	awaits(t, patience, "pod/hopeful-victim", placedOn, "short-lived")
	apply(t, pod("hopeful", "", append(there, "spec priorityClassName: hopeful")...))
	awaits(t, patience, "pod/hopeful", "{.status.nominatedNodeName}", "short-lived")
	kubectl(t, "delete", "node", "short-lived")
	awaits(t, patience, "pod/hopeful", "{.status.nominatedNodeName}", "")
	says(t, "hopeful", "Insufficient cpu", false)
	kubectl(t, "delete", "pods", "-l", "app=hopeful", "--grace-period=0", "--force")
	kubectl(t, "delete", "priorityclass/hopeful")
}

// TestANominationIsKeptByTheNodesName verifies that room is kept for a pod that an autoscaler
// nominated to a future node, when the node is created, and also when it is created again. The pod
// never preempts, because a preemption attempt without victims would clear the nomination.
func TestANominationIsKeptByTheNodesName(t *testing.T) {
	apply(t, `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: promised}
value: 1000
preemptionPolicy: Never
`)
	const large, anyTaint = "container resources: {requests: {cpu: 800m}}", "spec tolerations: [{operator: Exists}]"
	apply(t, pod("promised", "", "spec nodeSelector: {promise: kept}", anyTaint, large, "spec priorityClassName: promised"))
	awaits(t, patience, "pod/promised", "{.status.conditions[0].reason}", "Unschedulable")
	kubectl(t, "patch", "pod", "promised", "--subresource=status", `--patch={"status": {"nominatedNodeName": "promised-node"}}`)
	for _, rival := range []string{"promised-rival", "promised-late-rival"} {
		apply(t, `
apiVersion: v1
kind: Node
metadata: {name: promised-node, labels: {pool: promised}}
status: {allocatable: {cpu: "1", memory: 1Gi, pods: "10"}}
---
`+pod(rival, "", "spec nodeSelector: {pool: promised}", anyTaint, large))
		says(t, rival, "Insufficient cpu", true)
		if rival == "promised-rival" {
			kubectl(t, "delete", "node", "promised-node")
		}
	}
	kubectl(t, "label", "node", "promised-node", "promise=kept")
	awaits(t, patience, "pod/promised", placedOn, "promised-node")
	kubectl(t, "delete", "pods", "-l", "app=promised", "--grace-period=0", "--force")
	kubectl(t, "delete", "node/promised-node", "priorityclass/promised")
}

// says waits until the message of a pending pod contains the words (is true) or does not contain
// them (is false).
func says(t *testing.T, name, words string, is bool) {
	t.Helper()
	eventually(t, patience, func() error {
		if message := get(t, "pod/"+name, whyNot); strings.Contains(message, words) != is {
			return fmt.Errorf("%s says %q; %q is to be in it: %t", name, message, words, is)
		}
		return nil
	})
	if node := get(t, "pod/"+name, placedOn); node != "" {
		t.Errorf("%s is on %s", name, node)
	}
}

// TestAnIdleSchedulerDoesNotWaitOutABackoff verifies that an idle scheduler retries a pod before
// the end of its back-off: after seven changes that do not help, one per second, the pod must be
// placed soon after the eighth change, not seven seconds later.
func TestAnIdleSchedulerDoesNotWaitOutABackoff(t *testing.T) {
	const changes = 8
	simulate(t, "idle-", "--count", "1", "--label", "pool=idle")
	awaits(t, patience, "node/idle-1", `{.status.conditions[?(@.type=="Ready")].status}`, "True")
	kubectl(t, "taint", "nodes", "idle-1", fmt.Sprintf("closed=%d:NoSchedule", changes))
	apply(t, pod("impatient", "", "spec nodeSelector: {pool: idle}"))
	awaits(t, patience, "pod/impatient", "{.status.conditions[0].reason}", "Unschedulable")
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for i := range changes {
		<-each.C
		kubectl(t, "patch", "pod", "impatient", "--type=json",
			fmt.Sprintf(`--patch=[{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "closed", "value": "%d"}}]`, i+1))
	}
	awaits(t, 4*time.Second, "pod/impatient", placedOn, "idle-1")
	kubectl(t, "delete", "pod", "impatient", "--now")
}
