package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestPendingPodsSayWhy: for each plugin a pod that it alone keeps off the nodes of a pool, and what kube-scheduler v1.36 would write
// of it.
func TestPendingPodsSayWhy(t *testing.T) {
	simulate(t, "why-", "--count", "2", "--cpu", "2", "--label", "pool=why")
	elsewhere := fmt.Sprintf("%d node(s) didn't match Pod's node affinity/selector", len(strings.Fields(kubectl(t, "get", "nodes", "-l", "pool!=why", "-o", "name"))))
	all := len(strings.Fields(kubectl(t, "get", "nodes", "-o", "name")))
	const there, half = "spec nodeSelector: {pool: why}", "container resources: {requests: {cpu: 1}}"
	const taken = "container ports: [{containerPort: 80, hostPort: 80}]"
	// No pod of the cluster has less priority than these, so that preemption is of no use to them.
	says := func(own, preemption string, before bool) string {
		parts := own + ", " + elsewhere
		if !before {
			parts = elsewhere + ", " + own
		}
		return fmt.Sprintf("Unschedulable: 0/%d nodes are available: %s. no new claims to deallocate, preemption: 0/%d nodes are available: %s.", all, parts, all, preemption)
	}
	useless := fmt.Sprintf("%d Preemption is not helpful for scheduling", all)
	noVictims := fmt.Sprintf("2 No preemption victims found for incoming pod, %d Preemption is not helpful for scheduling", all-2)

	apply(t, pod("why-port", "", there, taken, half))
	apply(t, pod("why-port2", "", there, taken, half))
	awaits(t, decidesIn, "pod/why-port", "{.status.phase}", "Running")
	awaits(t, decidesIn, "pod/why-port2", "{.status.phase}", "Running")
	for _, c := range []struct{ name, manifest, want string }{
		{"port", pod("pending-port", "", there, taken),
			says("2 node(s) didn't have free ports for the requested pod ports", noVictims, true)},
		{"room", pod("pending-room", "", there, "container resources: {requests: {cpu: 1900m}}"),
			says("2 Insufficient cpu", noVictims, true)},
		{"size", pod("pending-size", "", there, "container resources: {requests: {cpu: 20}}"),
			says("2 Insufficient cpu", useless, true)},
		{"device", pod("pending-device", "", there, "container resources: {limits: {example.com/gpu: 1}}"),
			says("2 Insufficient example.com/gpu", useless, true)},
		{"affinity", pod("pending-affinity", "", there, "spec affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: nobody}}}]}}"),
			says("2 node(s) didn't match pod affinity rules", useless, true)},
		{"anti", pod("pending-anti", "", there, "spec affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: why}}}]}}"),
			says("2 node(s) didn't match pod anti-affinity rules", noVictims, true)},
		{"spread", pod("pending-spread", "", there, "spec topologySpreadConstraints: [{maxSkew: 1, topologyKey: example.com/rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: why}}}]"),
			says("2 node(s) didn't match pod topology spread constraints (missing required label)", useless, true)},
		{"claim", pod("pending-claim", "", there, "spec volumes: [{name: v, persistentVolumeClaim: {claimName: nowhere}}]"),
			fmt.Sprintf(`Unschedulable: 0/%d nodes are available: persistentvolumeclaim "nowhere" not found. no new claims to deallocate, preemption: 0/%d nodes are available: %s.`, all, all, useless)},
	} {
		t.Run(c.name, func(t *testing.T) {
			apply(t, c.manifest)
			awaits(t, decidesIn, "pod/pending-"+c.name, whyNot, c.want)
			kubectl(t, "delete", "pod", "pending-"+c.name, "--now")
		})
	}
	t.Run("cordon and taint", func(t *testing.T) {
		kubectl(t, "cordon", "why-1")
		kubectl(t, "taint", "nodes", "why-2", "k=v:NoSchedule")
		apply(t, pod("pending-taint", "", there))
		parts := []string{"1 node(s) had untolerated taint(s)", "1 node(s) were unschedulable", elsewhere}
		awaits(t, decidesIn, "pod/pending-taint", whyNot, fmt.Sprintf(
			"Unschedulable: 0/%d nodes are available: %s. no new claims to deallocate, preemption: 0/%d nodes are available: %s.", all, strings.Join(parts, ", "), all, useless))
		kubectl(t, "uncordon", "why-1")
		awaits(t, decidesIn, "pod/pending-taint", placedOn, "why-1")
		kubectl(t, "delete", "pod", "pending-taint", "--now")
	})
	kubectl(t, "delete", "pod", "why-port", "why-port2", "--now")
}

// TestAWaitingPodWakesForWhatHelps it within seconds, and not for what does not.
func TestAWaitingPodWakesForWhatHelps(t *testing.T) {
	simulate(t, "wake-", "--count", "1", "--cpu", "2", "--label", "pool=wake")
	const there = "spec nodeSelector: {pool: wake}"
	apply(t, pod("wake-full", "", there, "container resources: {requests: {cpu: 1500m}}"))
	awaits(t, decidesIn, "pod/wake-full", "{.status.phase}", "Running")
	apply(t, pod("wake-next", "", there, "container resources: {requests: {cpu: 1500m}}"))
	awaits(t, decidesIn, "pod/wake-next", "{.status.conditions[0].reason}", "Unschedulable")
	kubectl(t, "delete", "pod", "wake-full", "--now")
	awaits(t, decidesIn, "pod/wake-next", placedOn, "wake-1")
	apply(t, pod("wake-label", "", "spec nodeSelector: {pool: wake, disk: ssd}"))
	awaits(t, decidesIn, "pod/wake-label", "{.status.conditions[0].reason}", "Unschedulable")
	kubectl(t, "label", "node", "wake-1", "disk=ssd")
	awaits(t, decidesIn, "pod/wake-label", placedOn, "wake-1")
	kubectl(t, "delete", "pod", "wake-next", "wake-label", "--now")
}

// differs is nil if a field has a value, and another one than that.
func differs(got, from string) error {
	if got == "" || got == from {
		return fmt.Errorf("is %q, want another than %q", got, from)
	}
	return nil
}
