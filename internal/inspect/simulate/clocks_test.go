// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// leased is a cluster of ready nodes with the given ages of their Leases, and a pod on each. The
// first node has had a NoExecute taint for a minute.
func leased(t *testing.T, ago ...time.Duration) string {
	t.Helper()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var text strings.Builder
	for i, age := range ago {
		taints := ""
		if i == 0 {
			taints = fmt.Sprintf("taints: [{key: hot, effect: NoExecute, timeAdded: %q}]", now.Add(-time.Minute).Format(time.RFC3339))
		}
		renewed := now.Add(-age)
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Node
metadata: {name: node-%[1]d, creationTimestamp: "2026-02-01T00:00:00Z"}
spec: {%[2]s}
status:
  allocatable: {cpu: "4", memory: 8Gi, pods: "110"}
  conditions: [{type: Ready, status: "True", lastHeartbeatTime: %[3]q, lastTransitionTime: "2026-02-01T00:00:00Z"}]
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: node-%[1]d, namespace: kube-node-lease}
spec: {renewTime: %[4]q, leaseDurationSeconds: 40}
---
apiVersion: v1
kind: Pod
metadata: {name: pod-%[1]d, creationTimestamp: "2026-02-01T00:00:00Z"}
spec:
  nodeName: node-%[1]d
  containers: [{name: c, image: i}]
  tolerations: [{key: hot, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]
`, i, taints, renewed.Format(time.RFC3339), renewed.Format("2006-01-02T15:04:05.000000Z07:00"))
	}
	return text.String()
}

// TestAClockThatIsOffEmptiesNothing verifies that a node with a fast or slow clock is not
// considered dead, and makes no eviction due earlier.
func TestAClockThatIsOffEmptiesNothing(t *testing.T) {
	for name, ago := range map[string][]time.Duration{
		"all right": {5 * time.Second, time.Second, 8 * time.Second, 2 * time.Second},
		"ahead":     {5 * time.Second, -10 * time.Minute, 8 * time.Second, 2 * time.Second},
		"behind":    {5 * time.Second, 10 * time.Minute, 8 * time.Second, 2 * time.Second},
		"of two":    {5 * time.Second, -10 * time.Minute},
	} {
		s := run(t, leased(t, ago...), simulate.Options{For: 10 * time.Minute})
		if len(s.Evictions) != 1 || s.Evictions[0].Name != "pod-0" || s.Evictions[0].After < simulate.Seconds(235*time.Second) {
			t.Errorf("%s: %+v: want that of pod-0 alone, 240 s from now", name, s.Evictions)
		}
	}
	set := read(t, leased(t, 5*time.Second, -10*time.Minute, 8*time.Second))
	if ahead := simulate.ClocksAhead(set); len(ahead) != 1 || ahead[0] != "node-1" {
		t.Errorf("ahead: %v", ahead)
	}
}

// TestATwinHasAClockOfItsOwn verifies that a world and its twin have separate clocks, from which
// their plugins for device claims take the time.
func TestATwinHasAClockOfItsOwn(t *testing.T) {
	w := opened(t, leased(t, time.Second))
	twin, err := w.Twin()
	if err != nil {
		t.Fatal(err)
	}
	w.Advance(time.Hour)
	twin.Settle()
	for name, world := range map[string]*simulate.World{"the world": w, "its twin": twin} {
		do(t, world, simulate.Operation{Cordon: &simulate.Nodes{Node: "node-0"}})
		devices := world.Profile(v1.DefaultSchedulerName).Plugin("DynamicResources").(*plugins.DynamicResources)
		if now := devices.Now(); !now.Equal(world.Now()) {
			t.Errorf("%s: its devices' clock is at %s, its own at %s", name, now, world.Now())
		}
	}
}

// TestADeadNodeIsToldFromAClockThatIsBehind verifies that a ready node with an expired Lease is
// considered dead, whereas a ready node with a much older Lease is considered to have a slow clock.
// The boundary is the sum of the Lease duration (40 s), node health's grace period (50 s) and
// leasesDiffer (2 min), also without configured options.
func TestADeadNodeIsToldFromAClockThatIsBehind(t *testing.T) {
	for name, health := range map[string]nodehealth.Options{"by default": {}, "given": nodehealth.Defaults()} {
		for age, dead := range map[time.Duration]bool{30 * time.Second: false, 200 * time.Second: true, 220 * time.Second: false} {
			s := run(t, leased(t, 5*time.Second, age, 8*time.Second, 2*time.Second), simulate.Options{For: 10 * time.Minute, Health: health})
			evicted := slices.ContainsFunc(s.Evictions, func(e simulate.Eviction) bool { return e.Name == "pod-1" })
			if evicted != dead {
				t.Errorf("%s, a Lease of %s: its pod is evicted: %t", name, age, evicted)
			}
		}
	}
}
