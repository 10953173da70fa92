package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestASharedClaimIsProtected: pods that name one claim, all at once, leave it with the finalizer
// that keeps it, allocated once, and reserved for each; deleting the claim does not free the device
// under them.
func TestASharedClaimIsProtected(t *testing.T) {
	const pods = 12
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
		awaits(t, 3*decidesIn, fmt.Sprintf("pod/shares-%d", i), placedOn, "node-2")
	}
	if got := get(t, "resourceclaim/shared-claim", "{.metadata.finalizers[*]} {.status.allocation.devices.results[*].device}"); got != "resource.kubernetes.io/delete-protection only" {
		t.Errorf("the claim says %q", got)
	}
	if got := strings.Fields(get(t, "resourceclaim/shared-claim", "{.status.reservedFor[*].name}")); len(got) != pods {
		t.Errorf("it is reserved for %v", got)
	}
	kubectl(t, "delete", "resourceclaim", "shared-claim", "--wait=false")
	apply(t, pod("other", "", claims("other-claim")...))
	awaits(t, decidesIn, "pod/other", "{.status.conditions[0].reason}", "Unschedulable")
	if got := get(t, "resourceclaim/shared-claim", "{.status.allocation.devices.results[*].device}"); got != "only" {
		t.Errorf("the claim was deleted under its pods; it has %q", got)
	}
	kubectl(t, "delete", "pods", "-l", "app in (shares)", "--now")
	awaits(t, 5*decidesIn, "pod/other", placedOn, "node-2")
	kubectl(t, "delete", "pod", "other", "--now")
	kubectl(t, "delete", "resourceclaim/other-claim", "resourceslice/shared-devices", "deviceclass/shared")
}

// TestANominationEndsWithItsNode: a pod that waits for room on a node which is deleted gives the
// nomination up.
func TestANominationEndsWithItsNode(t *testing.T) {
	apply(t, `
apiVersion: v1
kind: Node
metadata: {name: short-lived, labels: {pool: short}}
spec: {taints: [{key: closed, effect: NoSchedule}]}
`)
	apply(t, pod("hopeful", "", "spec nodeSelector: {pool: short}"))
	awaits(t, decidesIn, "pod/hopeful", "{.status.conditions[0].reason}", "Unschedulable")
	kubectl(t, "delete", "node", "short-lived")
	kubectl(t, "patch", "pod", "hopeful", "--subresource=status", `--patch={"status": {"nominatedNodeName": "short-lived"}}`)
	awaits(t, decidesIn, "pod/hopeful", "{.status.nominatedNodeName}", "")
	kubectl(t, "delete", "pod", "hopeful", "--now")
}
