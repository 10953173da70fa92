// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// simulate runs `berth nodes` against the shared cluster, with node names that begin with prefix,
// until the test ends or stop is called.
func simulate(t *testing.T, prefix string, flags ...string) (stop func()) {
	t.Helper()
	out := &printed{}
	cmd := exec.Command(filepath.Join(bin, "berth"), append([]string{"nodes", "--name-prefix", prefix}, flags...)...)
	cmd.Env = append(os.Environ(), "BERTH_DATA_DIR="+shared.dir)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("berth nodes ended with %v\n%s", err, out)
			}
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			t.Errorf("berth nodes did not end within 20 s of SIGINT\n%s", out)
		}
	}
	if err := out.awaitLine("ready ", ended); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		nodes := strings.Fields(kubectl(t, "get", "nodes", "-l", "berth.dev/simulated", "-o", "name"))
		for _, node := range nodes {
			if strings.HasPrefix(node, "node/"+prefix) {
				kubectl(t, "delete", node)
			}
		}
	})
	return stop
}

// TestTaintsCordonAndLabelsWithStockKubectl verifies that stock kubectl can add and remove taints
// and labels, and cordon and describe nodes.
func TestTaintsCordonAndLabelsWithStockKubectl(t *testing.T) {
	for name, run := range kubectls(t) {
		t.Run(name, func(t *testing.T) {
			for _, effect := range []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} {
				run("taint", "nodes", "node-1", "key1=value1:"+effect).wants(t, 0, "tainted")
				awaitTaints(t, "node-1", "key1=value1:"+effect)
				run("taint", "nodes", "node-1", "key1=value1:"+effect+"-").wants(t, 0, "untainted")
				awaitTaints(t, "node-1")
			}
			run("taint", "nodes", "node-1", "key1=value1:NoSchedule", "key1=value1:NoExecute", "key2=value2:NoSchedule").wants(t, 0)
			awaitTaints(t, "node-1", "key1=value1:NoSchedule", "key1=value1:NoExecute", "key2=value2:NoSchedule")
			run("taint", "nodes", "node-1", "key1-", "key2-").wants(t, 0)
			awaitTaints(t, "node-1")
			run("taint", "nodes", "node-1", "key1=value1:NoRun").wants(t, 1, "invalid taint effect")

			run("cordon", "node-1").wants(t, 0, "cordoned")
			run("get", "node", "node-1").wants(t, 0, "SchedulingDisabled")
			run("uncordon", "node-1").wants(t, 0, "uncordoned")

			run("label", "node", "node-1", "disk=ssd").wants(t, 0)
			run("get", "nodes", "-l", "disk=ssd", "-o", "name").wants(t, 0, "node/node-1")
			run("label", "node", "node-1", "disk-").wants(t, 0)

			run("describe", "node", "node-1").wants(t, 0,
				"KubeletReady", "MemoryPressure", "PodCIDR", "topology.kubernetes.io/zone=z1", "Berth simulated node")
		})
	}
}

// awaitTaints waits until a node has exactly these taints, apart from the automatic ones
// (node.kubernetes.io/...).
func awaitTaints(t *testing.T, node string, want ...string) {
	t.Helper()
	eventually(t, patience, func() error {
		var own []string
		for _, taint := range strings.Fields(get(t, "node/"+node, "{range .spec.taints[*]}{.key}={.value}:{.effect} {end}")) {
			if !strings.HasPrefix(taint, "node.kubernetes.io/") {
				own = append(own, taint)
			}
		}
		if !slices.Equal(own, want) {
			return fmt.Errorf("%s has the taints %v, want %v", node, own, want)
		}
		return nil
	})
}

func TestAnExtendedResourceInCapacityBecomesAllocatable(t *testing.T) {
	kubectl(t, "patch", "node", "node-2", "--subresource=status", "--type=json",
		"-p", `[{"op": "add", "path": "/status/capacity/example.com~1dongle", "value": "4"}]`)
	awaits(t, patience, "node/node-2", `{.status.allocatable.example\.com/dongle}`, "4")
	apply(t, pod("dongle", "node-2", "container resources: {requests: {example.com/dongle: 5}, limits: {example.com/dongle: 5}}"))
	awaits(t, patience, "pod/dongle", "{.status.reason}", "OutOfexample.com/dongle")
	kubectl(t, "delete", "pod", "dongle")
	kubectl(t, "patch", "node", "node-2", "--subresource=status", "--type=json",
		"-p", `[{"op": "remove", "path": "/status/capacity/example.com~1dongle"}]`)
	awaits(t, patience, "node/node-2", `{.status.allocatable.example\.com/dongle}`, "")
}

func TestNodesAreMadeAsFlagsSay(t *testing.T) {
	simulate(t, "gpu-", "--count", "2", "--zones", "2", "--region", "north", "--cpu", "8", "--memory", "16Gi", "--pods", "20",
		"--resource", "nvidia.com/gpu=8", "--taint", "nvidia.com/gpu=true:NoSchedule", "--label", "pool=gpu")
	awaits(t, patience, "node/gpu-2",
		`{.status.allocatable.cpu} {.status.allocatable.memory} {.status.allocatable.pods} {.status.allocatable.nvidia\.com/gpu} `+
			`{.metadata.labels.pool} {.metadata.labels.topology\.kubernetes\.io/zone} {.metadata.labels.topology\.kubernetes\.io/region} {.metadata.labels.kubernetes\.io/hostname}`,
		"8 16Gi 20 8 gpu z2 north gpu-2")
	if got := get(t, "node/gpu-1", "{.spec.taints}"); !strings.Contains(got, "nvidia.com/gpu") {
		t.Errorf("taints of gpu-1: %s", got)
	}
	if got := kubectl(t, "get", "lease", "-n", "kube-node-lease", "gpu-1", "-o", "jsonpath={.spec.leaseDurationSeconds} {.spec.holderIdentity} {.metadata.ownerReferences[0].kind}"); got != "40 gpu-1 Node" {
		t.Errorf("lease of gpu-1: %s", got)
	}
}

func TestADeletedNodeStaysGoneWithItsPodsUntilTheNextStart(t *testing.T) {
	stop := simulate(t, "mayfly-", "--count", "3")
	apply(t, pod("mayfly", "mayfly-1"))
	awaits(t, patience, "pod/mayfly", "{.status.phase}", "Running")
	kubectl(t, "delete", "node", "mayfly-1")
	awaitGone(t, patience, "pod/mayfly")
	if got := kubectl(t, "get", "node", "mayfly-1", "--ignore-not-found"); got != "" {
		t.Errorf("the node is back: %s", got)
	}
	stop()
	simulate(t, "mayfly-", "--count", "2")
	kubectl(t, "get", "node", "mayfly-1", "mayfly-2")
	awaitGone(t, patience, "node/mayfly-3")
}

// TestFailedNodesRenewNothingAndTheirPodsFreeze verifies that a failed node renews no Lease and
// that its pods keep their state until the node recovers.
func TestFailedNodesRenewNothingAndTheirPodsFreeze(t *testing.T) {
	simulate(t, "frail-", "--count", "4", "--zones", "2", "--lease-renew-interval", "1s")
	apply(t, pod("frozen", "frail-1"))
	awaits(t, patience, "pod/frozen", "{.status.phase}", "Running")
	berth(t, "nodes", "fail", "--node", "frail-1,frail-3").wants(t, 0, "frail-1: heartbeats stopped until berth nodes recover")
	kubectl(t, "delete", "pod", "frozen", "--wait=false")

	renewed := func(node string) string {
		return kubectl(t, "get", "lease", "-n", "kube-node-lease", node, "-o", "jsonpath={.spec.renewTime}")
	}
	silent, speaks := renewed("frail-1"), renewed("frail-2")
	// The Lease of frail-2 serves as a clock: after it was renewed three times, the Lease of
	// frail-1 must be unchanged.
	for range 3 {
		eventually(t, patience, func() error {
			if now := renewed("frail-2"); now != speaks {
				speaks = now
				return nil
			}
			return fmt.Errorf("frail-2 does not renew its lease")
		})
	}
	if now := renewed("frail-1"); now != silent {
		t.Errorf("frail-1 renewed its lease at %s, after %s", now, silent)
	}
	if got := get(t, "pod/frozen", "{.status.phase}"); got != "Running" {
		t.Errorf("the pod on a silent node is %q", got)
	}
	berth(t, "nodes", "recover", "--node", "frail-1", "--node", "frail-3").wants(t, 0, "frail-1: recovered")
	awaitGone(t, patience, "pod/frozen")
	eventually(t, patience, func() error {
		if renewed("frail-1") == silent {
			return fmt.Errorf("frail-1 does not renew its lease")
		}
		return nil
	})

	// With a duration, the node recovers by itself.
	berth(t, "nodes", "fail", "--node", "frail-2", "--for", "2s").wants(t, 0, "for 2s")
	apply(t, pod("later", "frail-2"))
	awaits(t, patience, "pod/later", "{.status.phase}", "Running")
	kubectl(t, "delete", "pod", "later")
}

func TestAZoneFailsAsAWhole(t *testing.T) {
	r := berth(t, "nodes", "fail", "--zone", "z3", "--for", "1m")
	r.wants(t, 0, "node-3: heartbeats stopped for 1m")
	if strings.Contains(r.stdout, "node-1") {
		t.Errorf("z1 failed too:\n%s", r.stdout)
	}
	berth(t, "nodes", "recover", "--zone", "z3").wants(t, 0, "node-3: recovered")
}

func TestConditionsComeAndGo(t *testing.T) {
	status := func(kind string) string { return `{.status.conditions[?(@.type=="` + kind + `")].status}` }
	berth(t, "nodes", "condition", "node-3", "MemoryPressure=True", "NetworkUnavailable=True").wants(t, 0, "node-3: conditions changed")
	awaits(t, patience, "node/node-3", status("MemoryPressure")+status("NetworkUnavailable"), "TrueTrue")
	berth(t, "nodes", "condition", "node-3", "MemoryPressure-", "Ready=False").wants(t, 0)
	awaits(t, patience, "node/node-3", status("MemoryPressure")+status("NetworkUnavailable")+status("Ready"), "FalseTrueFalse")
	berth(t, "nodes", "condition", "node-3", "NetworkUnavailable=False", "Ready=True").wants(t, 0)
	awaits(t, patience, "node/node-3", status("NetworkUnavailable")+status("Ready"), "FalseTrue")
	if got := get(t, "node/node-3", "{.metadata.annotations}"); bytes.Contains([]byte(got), []byte("berth.dev/conditions")) {
		t.Errorf("the annotation is left: %s", got)
	}
}
