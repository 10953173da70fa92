// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLegacyFilesLive verifies that the scheduler accepts legacy configurations: a Policy in a
// ConfigMap, and a file that refers to a Policy and disables preemption.
func TestLegacyFilesLive(t *testing.T) {
	simulate(t, "legacy-", "--count", "1", "--cpu", "2", "--label", "pool=legacy")
	const there = "spec nodeSelector: {pool: legacy}"
	const big = "container resources: {requests: {cpu: 1500m}}"
	apply(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: old-policy, namespace: kube-system}
data:
  policy.cfg: |
    {"kind": "Policy", "apiVersion": "v1",
     "predicates": [{"name": "GeneralPredicates"}, {"name": "PodToleratesNodeTaints"}],
     "priorities": [{"name": "MostRequestedPriority", "weight": 1}]}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: above}
value: 1000
`)
	byConfigMap := shared.schedule(t, "--policy-configmap", "old-policy", "--scheduler-name", "of-a-policy", "--lock-object-name", "of-a-policy",
		"--use-legacy-policy-config")
	eventually(t, startWithin, func() error { return byConfigMap.says("ready") })
	apply(t, pod("low-legacy", "", there, big, "spec schedulerName: of-a-policy"))
	awaits(t, patience, "pod/low-legacy", "{.status.phase}", "Running")
	if err := byConfigMap.says("ConfigMap kube-system/old-policy: is translated"); err != nil {
		t.Error(err)
	}

	dir := t.TempDir()
	policy, file := filepath.Join(dir, "policy.json"), filepath.Join(dir, "legacy.yaml")
	for name, content := range map[string]string{
		policy: `{"kind": "Policy", "apiVersion": "v1", "predicates": [{"name": "GeneralPredicates"}]}`,
		file: `
apiVersion: kubescheduler.config.k8s.io/v1alpha1
kind: KubeSchedulerConfiguration
schedulerName: peaceful
leaderElection: {lockObjectName: peaceful}
disablePreemption: true
algorithmSource: {policy: {file: {path: policy.json}}}
`,
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	byFile := shared.schedule(t, "--config", file)
	eventually(t, startWithin, func() error { return byFile.says("ready") })
	apply(t, pod("high-legacy", "", there, big, "spec schedulerName: peaceful", "spec priorityClassName: above"))
	awaits(t, patience, "pod/high-legacy", "{.status.conditions[0].reason}", "Unschedulable")
	if message := get(t, "pod/high-legacy", whyNot); !strings.Contains(message, "Insufficient cpu") || strings.Contains(message, "preemption") {
		t.Errorf("without preemption the pod says %q", message)
	}
	if got := get(t, "pod/low-legacy", "{.metadata.deletionTimestamp}{.status.phase}"); got != "Running" {
		t.Errorf("the pod with the lower priority is %q", got)
	}
	kubectl(t, "delete", "pod", "low-legacy", "high-legacy", "--now")
	kubectl(t, "delete", "priorityclass", "above")
	kubectl(t, "delete", "configmap", "old-policy", "-n", "kube-system")
}
