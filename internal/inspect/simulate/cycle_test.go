// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// story runs a scenario and returns the time and outcome of each decision, in order.
func story(t *testing.T, cluster, steps string, files map[string]string) []string {
	t.Helper()
	s := run(t, cluster, simulate.Options{
		For: time.Hour, Scenario: scenario(t, steps),
		Read: func(names []string, _ *manifest.Set) (*manifest.Set, error) { return read(t, files[names[0]]), nil },
	})
	var lines []string
	for _, p := range s.Pods {
		line := fmt.Sprintf("%s %s: ", p.After, p.Name)
		switch {
		case p.Node != "":
			line += p.Node
		case len(p.Victims) > 0:
			line += "makes room on " + p.NominatedNode
		default:
			line += "pending"
		}
		lines = append(lines, line)
	}
	return lines
}

const smallCluster = `apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1}}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "110"}}
---
`

func podYAML(name, more, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s%s}\nspec: {%s, containers: [{name: c, image: i, resources: {requests: {cpu: 1500m}}}]}\n---\n", name, more, spec)
}

// TestPodsAreWokenByWhatHelpsThem verifies that a pod is woken only by a change that can help it: a
// pod with affinity to another pod wakes when that pod appears, but not when an already tolerated
// taint is removed.
func TestPodsAreWokenByWhatHelpsThem(t *testing.T) {
	beside := `affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: db}}}]}}`
	cluster := smallCluster + strings.Replace(podYAML("beside", "", beside), "1500m", "100m", 1)
	got := story(t, cluster, "- {at: 1m, taint: {node: n1, taints: [\"x:NoSchedule\"]}}\n- {at: 2m, untaint: {node: n1, taints: [\"x:NoSchedule\"]}}\n- {at: 3m, deploy: db.yaml}\n",
		map[string]string{"db.yaml": podYAML("db", ", labels: {app: db}", "priority: 0")})
	if diff := cmp.Diff([]string{"0s beside: pending", "180s db: n1", "180s beside: n1"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestGatesAreTakenAwayInVirtualTime verifies that gates hold a pod back until its manifest is
// applied without gates.
func TestGatesAreTakenAwayInVirtualTime(t *testing.T) {
	cluster := smallCluster + podYAML("gated", "", "schedulingGates: [{name: example.com/quota}]")
	got := story(t, cluster, "- {at: 5m, deploy: open.yaml}\n", map[string]string{"open.yaml": podYAML("gated", "", "priority: 0")})
	if diff := cmp.Diff([]string{"0s gated: pending", "300s gated: n1"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestVictimsTakeTheirGrace verifies that a victim keeps its place for its grace period, and that
// the preemptor is placed once the victim has ended, which is sooner with a shorter grace period.
func TestVictimsTakeTheirGrace(t *testing.T) {
	for grace, after := range map[string]string{"45": "45s", "0": "0s"} {
		cluster := smallCluster + podYAML("victim", "", "nodeName: n1, terminationGracePeriodSeconds: "+grace) + podYAML("urgent", "", "priorityClassName: system-node-critical") +
			podYAML("later", "", "priority: 0")
		got := story(t, strings.Replace(cluster, "metadata: {name: urgent}", "metadata: {name: urgent, namespace: kube-system}", 1), "- {at: 10m, delete: {object: pod/urgent, namespace: kube-system}}\n", nil)
		want := []string{"0s urgent: makes room on n1", "0s later: pending", after + " urgent: n1", "600s later: n1"}
		if grace == "0" {
			want = []string{"0s urgent: makes room on n1", "0s urgent: n1", "0s later: pending", "600s later: n1"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("grace %s: %s", grace, diff)
		}
	}
}
