// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
)

const (
	placedOn = "{.spec.nodeName}"
	whyNot   = `{.status.conditions[?(@.type=="PodScheduled")].reason}: {.status.conditions[?(@.type=="PodScheduled")].message}`
)

// TestThreeTaints verifies the example with three taints in Kubernetes' documentation: a pod that
// tolerates only the two taints with key1 is not placed on the node, but a running pod with the
// same tolerations stays there.
func TestThreeTaints(t *testing.T) {
	simulate(t, "tainted-", "--count", "1", "--label", "pool=tainted")
	const tolerant = "spec tolerations: [{key: key1, value: value1, effect: NoSchedule}, {key: key1, value: value1, effect: NoExecute}]"
	apply(t, pod("resident", "tainted-1", tolerant))
	awaits(t, patience, "pod/resident", "{.status.phase}", "Running")
	kubectl(t, "taint", "nodes", "tainted-1", "key1=value1:NoSchedule", "key1=value1:NoExecute", "key2=value2:NoSchedule")
	apply(t, pod("newcomer", "", tolerant, "spec nodeSelector: {pool: tainted}"))
	awaits(t, patience, "pod/newcomer", "{.status.conditions[0].reason}", "Unschedulable")
	message := get(t, "pod/newcomer", whyNot)
	for _, words := range []string{"1 node(s) had untolerated taint(s)", "node(s) didn't match Pod's node affinity/selector"} {
		if !strings.Contains(message, words) {
			t.Errorf("the pod says %q, not %q", message, words)
		}
	}
	awaits(t, patience, "pod/resident", "{.status.phase}", "Running")
	kubectl(t, "taint", "nodes", "tainted-1", "key2-")
	awaits(t, patience, "pod/newcomer", placedOn, "tainted-1")
	kubectl(t, "delete", "pod", "resident", "newcomer")
}

func TestAGatedPodWaitsForItsGate(t *testing.T) {
	apply(t, pod("gated", "", "spec schedulingGates: [{name: example.com/paid}]"))
	awaits(t, patience, "pod/gated", whyNot, "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates")
	kubectl(t, "patch", "pod", "gated", "--type=json", `-p=[{"op": "remove", "path": "/spec/schedulingGates"}]`)
	awaits(t, patience, "pod/gated", "{.status.phase}", "Running")
	kubectl(t, "delete", "pod", "gated")
}

func TestAPodOfAnotherSchedulerIsLeftAlone(t *testing.T) {
	apply(t, pod("foreign", "", "spec schedulerName: somebody-else"))
	apply(t, pod("own", ""))
	awaits(t, patience, "pod/own", "{.status.phase}", "Running")
	if node := get(t, "pod/foreign", placedOn); node != "" {
		t.Errorf("the pod of another scheduler is on %s", node)
	}
	kubectl(t, "delete", "pod", "foreign", "own")
}

// TestPreemption verifies that a high-priority pod preempts a low-priority pod, unless its
// preemption policy forbids that. Both pods must report the reason.
func TestPreemption(t *testing.T) {
	simulate(t, "full-", "--count", "1", "--cpu", "2", "--label", "pool=full")
	apply(t, `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: patient}
value: 1000
preemptionPolicy: Never
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
`)
	const there = "spec nodeSelector: {pool: full}"
	const big = "container resources: {requests: {cpu: 1500m}}"
	apply(t, pod("low", "", there, big, "spec terminationGracePeriodSeconds: 3"))
	awaits(t, patience, "pod/low", "{.status.phase}", "Running")
	apply(t, pod("patient", "", there, big, "spec priorityClassName: patient"))
	awaits(t, patience, "pod/patient", "{.status.conditions[0].reason}", "Unschedulable")
	if message := get(t, "pod/patient", whyNot); !strings.HasSuffix(message, "preemption: not eligible due to preemptionPolicy=Never.") {
		t.Errorf("the patient pod says %q", message)
	}
	kubectl(t, "annotate", "pod", "low", "berth.dev/terminate-after=2s")
	apply(t, pod("urgent", "", there, big, "spec priorityClassName: urgent"))
	awaits(t, patience, "pod/low", `{.status.conditions[?(@.type=="DisruptionTarget")].reason}`, "PreemptionByScheduler")
	awaits(t, patience, "pod/urgent", "{.status.nominatedNodeName}", "full-1")
	awaits(t, patience, "pod/urgent", "{.status.phase}", "Running")
	awaitGone(t, patience, "pod/low")
	kubectl(t, "delete", "pod", "patient", "urgent")
}

// TestAVolumeIsBoundWithItsPod verifies that the scheduler binds a claim that waits for its first
// consumer, and places the pod on the node that can reach the volume.
func TestAVolumeIsBoundWithItsPod(t *testing.T) {
	apply(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-of-node-2}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: local
  local: {path: /mnt}
  nodeAffinity:
    required:
      nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-2]}]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: local
  resources: {requests: {storage: 1Gi}}
`)
	apply(t, pod("with-disk", "", "spec volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]"))
	awaits(t, patience, "pod/with-disk", placedOn, "node-2")
	if phase := get(t, "pvc/data", "{.status.phase} {.spec.volumeName}"); phase != "Bound disk-of-node-2" {
		t.Errorf("the claim is %s when its pod is bound", phase)
	}
	kubectl(t, "delete", "pod", "with-disk")
	kubectl(t, "delete", "pvc", "data")
	kubectl(t, "delete", "pv", "disk-of-node-2")
}
