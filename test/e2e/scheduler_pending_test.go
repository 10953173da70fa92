// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestPendingPodsSayWhy verifies that the message of a pending pod equals the message of
// kube-scheduler v1.37. For each plugin there is a pod for which only this plugin rejects the nodes
// of a pool.
func TestPendingPodsSayWhy(t *testing.T) {
	simulate(t, "why-", "--count", "2", "--cpu", "2", "--label", "pool=why")
	w := wordsOf(t, "why")
	elsewhere, all := w.elsewhere, w.all
	const there, half = "spec nodeSelector: {pool: why}", "container resources: {requests: {cpu: 1}}"
	const taken = "container ports: [{containerPort: 80, hostPort: 80}]"
	useless, noVictims := w.useless, w.noVictims(2)

	apply(t, pod("why-port", "", there, taken, half))
	apply(t, pod("why-port2", "", there, taken, half))
	awaits(t, patience, "pod/why-port", "{.status.phase}", "Running")
	awaits(t, patience, "pod/why-port2", "{.status.phase}", "Running")
	for _, c := range []struct{ name, manifest, want string }{
		{"port", pod("pending-port", "", there, taken),
			w.says("2 node(s) didn't have free ports for the requested pod ports", noVictims)},
		{"room", pod("pending-room", "", there, "container resources: {requests: {cpu: 1900m}}"),
			w.says("2 Insufficient cpu", noVictims)},
		{"size", pod("pending-size", "", there, "container resources: {requests: {cpu: 20}}"),
			w.says("2 Insufficient cpu", useless)},
		{"device", pod("pending-device", "", there, "container resources: {limits: {example.com/gpu: 1}}"),
			w.says("2 Insufficient example.com/gpu", useless)},
		{"affinity", pod("pending-affinity", "", there, "spec affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: nobody}}}]}}"),
			w.says("2 node(s) didn't match pod affinity rules", useless)},
		{"anti", pod("pending-anti", "", there, "spec affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: why}}}]}}"),
			w.says("2 node(s) didn't match pod anti-affinity rules", noVictims)},
		{"spread", pod("pending-spread", "", there, "spec topologySpreadConstraints: [{maxSkew: 1, topologyKey: example.com/rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: why}}}]"),
			w.says("2 node(s) didn't match pod topology spread constraints (missing required label)", useless)},
		{"claim", pod("pending-claim", "", there, "spec volumes: [{name: v, persistentVolumeClaim: {claimName: nowhere}}]"),
			fmt.Sprintf(`Unschedulable: 0/%d nodes are available: persistentvolumeclaim "nowhere" not found. preemption: 0/%d nodes are available: %s.`, all, all, useless)},
	} {
		t.Run(c.name, func(t *testing.T) {
			apply(t, c.manifest)
			awaits(t, patience, "pod/pending-"+c.name, whyNot, c.want)
			kubectl(t, "delete", "pod", "pending-"+c.name, "--now")
		})
	}
	t.Run("cordon and taint", func(t *testing.T) {
		kubectl(t, "cordon", "why-1")
		kubectl(t, "taint", "nodes", "why-2", "k=v:NoSchedule")
		apply(t, pod("pending-taint", "", there))
		parts := []string{"1 node(s) had untolerated taint(s)", "1 node(s) were unschedulable", elsewhere}
		awaits(t, patience, "pod/pending-taint", whyNot, fmt.Sprintf(
			"Unschedulable: 0/%d nodes are available: %s. preemption: 0/%d nodes are available: %s.", all, strings.Join(parts, ", "), all, useless))
		kubectl(t, "uncordon", "why-1")
		awaits(t, patience, "pod/pending-taint", placedOn, "why-1")
		kubectl(t, "delete", "pod", "pending-taint", "--now")
	})
	kubectl(t, "delete", "pod", "why-port", "why-port2", "--now")
}

// words builds the messages of kube-scheduler for pods of a node pool. No pod of the cluster has a
// lower priority, so preemption cannot help these pods.
type words struct {
	all                int // nodes
	elsewhere, useless string
}

func wordsOf(t *testing.T, pool string) words {
	count := func(selector string) int {
		return len(strings.Fields(kubectl(t, "get", "nodes", "-l", selector, "-o", "name")))
	}
	others := count("pool!=" + pool)
	w := words{all: others + count("pool="+pool)}
	w.elsewhere = fmt.Sprintf("%d node(s) didn't match Pod's node affinity/selector", others)
	w.useless = fmt.Sprintf("%d Preemption is not helpful for scheduling", w.all)
	return w
}

// noVictims returns the text that preemption adds to the message if the given number of nodes have
// no victims and preemption does not help on the other nodes.
func (w words) noVictims(nodes int) string {
	return fmt.Sprintf("%d No preemption victims found for incoming pod, %d Preemption is not helpful for scheduling", nodes, w.all-nodes)
}

func (w words) says(own, preemption string) string {
	parts := []string{own, w.elsewhere}
	slices.Sort(parts)
	return fmt.Sprintf("Unschedulable: 0/%d nodes are available: %s. preemption: 0/%d nodes are available: %s.",
		w.all, strings.Join(parts, ", "), w.all, preemption)
}

// TestPendingPodsSayWhyOfVolumesAndFeatures verifies the same for the plugins that check volumes
// and features of kubelets.
func TestPendingPodsSayWhyOfVolumesAndFeatures(t *testing.T) {
	nightly.Only(t)
	simulate(t, "store-", "--count", "1", "--cpu", "8", "--label", "pool=store")
	kubectl(t, "label", "node", "store-1", "topology.kubernetes.io/zone=here", "--overwrite")
	w := wordsOf(t, "store")
	const there = "spec nodeSelector: {pool: store}"
	const iscsi = "{name: v, iscsi: {targetPortal: 10.0.0.1, iqn: iqn.2026-11.com.example:disk, lun: 0}}"
	claim := func(name string) string {
		return "spec volumes: [{name: v, persistentVolumeClaim: {claimName: " + name + "}}]"
	}
	apply(t, `
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: store-1}
spec: {drivers: [{name: store.example.com, nodeID: store-1, allocatable: {count: 1}}]}
`)
	apply(t, volume("far", "ReadWriteOnce", "far.example.com", "topology.kubernetes.io/zone: there"))
	apply(t, volume("first", "ReadWriteOnce", "store.example.com", ""))
	apply(t, volume("second", "ReadWriteOnce", "store.example.com", ""))
	apply(t, volume("single", "ReadWriteOncePod", "other.example.com", ""))
	for _, name := range []string{"far", "first", "second", "single"} {
		awaits(t, patience, "pvc/"+name, "{.status.phase}", "Bound")
	}
	apply(t, pod("store-first", "", there, claim("first")))
	apply(t, pod("store-single", "", there, claim("single")))
	apply(t, pod("store-disk", "", there, "spec volumes: ["+iscsi+"]"))
	for _, name := range []string{"first", "single", "disk"} {
		awaits(t, patience, "pod/store-"+name, "{.status.phase}", "Running")
	}
	for _, c := range []struct{ name, manifest, want string }{
		{"zone", pod("pending-zone", "", there, claim("far")), w.says("1 node(s) had no available volume zone", w.useless)},
		{"limit", pod("pending-limit", "", there, claim("second")), w.says("1 node(s) exceed max volume count", w.noVictims(1))},
		{"once", pod("pending-once", "", there, claim("single")),
			w.says("1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod", w.noVictims(1))},
		{"disk", pod("pending-disk", "", there, "spec volumes: ["+iscsi+"]"), w.says("1 node(s) had no available disk", w.noVictims(1))},
		{"feature", pod("pending-feature", "", there,
			"container restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]"),
			w.says("1 node(s) didn't match Pod's required features", w.useless)},
	} {
		t.Run(c.name, func(t *testing.T) {
			apply(t, c.manifest)
			awaits(t, patience, "pod/pending-"+c.name, whyNot, c.want)
			kubectl(t, "delete", "pod", "pending-"+c.name, "--now")
		})
	}
	kubectl(t, "delete", "pod", "store-first", "store-single", "store-disk", "--now")
	kubectl(t, "delete", "pvc", "far", "first", "second", "single")
	kubectl(t, "delete", "pv", "far", "first", "second", "single")
	kubectl(t, "delete", "csinode", "store-1")
}

// volume returns a manifest of a volume of a CSI driver, bound to a claim with the same name.
func volume(name, mode, driver, label string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s, labels: {%[4]s}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [%[2]s]
  storageClassName: ""
  claimRef: {namespace: default, name: %[1]s}
  csi: {driver: %[3]s, volumeHandle: %[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec:
  accessModes: [%[2]s]
  storageClassName: ""
  volumeName: %[1]s
  resources: {requests: {storage: 1Gi}}
`, name, mode, driver, label)
}

// TestAWaitingPodWakesForWhatHelps verifies that a pending pod is placed soon after an event that
// makes it feasible: the deletion of another pod, or a new node label.
func TestAWaitingPodWakesForWhatHelps(t *testing.T) {
	simulate(t, "wake-", "--count", "1", "--cpu", "2", "--label", "pool=wake")
	const there = "spec nodeSelector: {pool: wake}"
	apply(t, pod("wake-full", "", there, "container resources: {requests: {cpu: 1500m}}"))
	awaits(t, patience, "pod/wake-full", "{.status.phase}", "Running")
	apply(t, pod("wake-next", "", there, "container resources: {requests: {cpu: 1500m}}"))
	awaits(t, patience, "pod/wake-next", "{.status.conditions[0].reason}", "Unschedulable")
	kubectl(t, "delete", "pod", "wake-full", "--now")
	awaits(t, patience, "pod/wake-next", placedOn, "wake-1")
	apply(t, pod("wake-label", "", "spec nodeSelector: {pool: wake, disk: ssd}"))
	awaits(t, patience, "pod/wake-label", "{.status.conditions[0].reason}", "Unschedulable")
	kubectl(t, "label", "node", "wake-1", "disk=ssd")
	awaits(t, patience, "pod/wake-label", placedOn, "wake-1")
	kubectl(t, "delete", "pod", "wake-next", "wake-label", "--now")
}

// differs returns nil if the value of a field is not empty and differs from another value.
func differs(got, from string) error {
	if got == "" || got == from {
		return fmt.Errorf("is %q, want another than %q", got, from)
	}
	return nil
}
