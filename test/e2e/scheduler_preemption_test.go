// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPreemptionAndBudgets verifies that preemption prefers victims that no budget protects. If all
// victims are protected, preemption must violate a budget, unless the profile forbids it.
func TestPreemptionAndBudgets(t *testing.T) {
	simulate(t, "pdb-", "--count", "2", "--cpu", "2", "--label", "pool=pdb")
	apply(t, `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: pressing}
value: 1000
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guard}
spec: {minAvailable: 1, selector: {matchLabels: {app: guarded}}}
`)
	const there, big = "spec nodeSelector: {pool: pdb}", "container resources: {requests: {cpu: 1500m}}"
	apply(t, pod("guarded-a", "", there, big))
	awaits(t, patience, "pod/guarded-a", "{.status.phase}", "Running")
	apply(t, pod("free-b", "", there, big))
	awaits(t, patience, "pod/free-b", "{.status.phase}", "Running")
	awaits(t, patience, "pdb/guard", "{.status.currentHealthy} {.status.disruptionsAllowed}", "1 0")
	open := get(t, "pod/free-b", placedOn)
	apply(t, pod("pressing-1", "", there, big, "spec priorityClassName: pressing"))
	awaits(t, patience, "pod/pressing-1", placedOn, open)
	if phase := get(t, "pod/guarded-a", "{.status.phase}"); phase != "Running" {
		t.Errorf("the guarded pod is %s", phase)
	}
	apply(t, pod("pressing-2", "", there, big, "spec priorityClassName: pressing"))
	awaitGone(t, patience, "pod/guarded-a")
	awaits(t, patience, "pod/pressing-2", "{.status.phase}", "Running")
	kubectl(t, "delete", "pod", "pressing-1", "pressing-2", "--now")
	kubectl(t, "delete", "pdb/guard", "priorityclass/pressing")
}

// TestTwoProfilesAtOnce verifies that one scheduler serves a packing and a spreading profile, and
// that only the spreading profile preempts.
func TestTwoProfilesAtOnce(t *testing.T) {
	simulate(t, "two-", "--count", "2", "--cpu", "4", "--label", "pool=two")
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
profiles:
- schedulerName: spreading
- schedulerName: packing
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
  plugins:
    score: {disabled: [{name: NodeResourcesBalancedAllocation}, {name: PodTopologySpread}]}
    postFilter: {disabled: [{name: DefaultPreemption}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	shared.schedule(t, "--config", file)
	const there, small = "spec nodeSelector: {pool: two}", "container resources: {requests: {cpu: 500m, memory: 100Mi}}"
	apply(t, pod("two-seed", "", there, small, "spec schedulerName: packing"))
	awaits(t, patience, "pod/two-seed", "{.status.phase}", "Running")
	seeded := get(t, "pod/two-seed", placedOn)
	apply(t, pod("two-packed", "", there, small, "spec schedulerName: packing"))
	awaits(t, patience, "pod/two-packed", placedOn, seeded)
	apply(t, pod("two-spread", "", there, small, "spec schedulerName: spreading"))
	eventually(t, patience, func() error { return differs(get(t, "pod/two-spread", placedOn), seeded) })

	apply(t, `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: pushy}
value: 1000
`)
	apply(t, pod("pushy-p", "", there, "container resources: {requests: {cpu: 3800m}}", "spec schedulerName: packing", "spec priorityClassName: pushy"))
	awaits(t, patience, "pod/pushy-p", "{.status.conditions[0].reason}", "Unschedulable")
	if message := get(t, "pod/pushy-p", whyNot); strings.Contains(message, "preemption") {
		t.Errorf("preemption is off, and the pod says %q", message)
	}
	apply(t, pod("pushy-s", "", there, "container resources: {requests: {cpu: 3800m}}", "spec schedulerName: spreading", "spec priorityClassName: pushy"))
	awaits(t, patience, "pod/pushy-s", "{.status.phase}", "Running")
	kubectl(t, "delete", "pod", "-l", "app in (two, pushy)", "--now")
	kubectl(t, "delete", "priorityclass/pushy")
}
