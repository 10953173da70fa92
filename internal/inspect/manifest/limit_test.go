// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/world/workload"
)

// absurd returns stored workloads with the given number of replicas and no pods, as under a quota
// of 0, and an ordinary Deployment.
func absurd(replicas int) string {
	const pod = `{metadata: {labels: {app: a}}, spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}`
	always := strings.Replace(pod, "restartPolicy: Never, ", "", 1)
	var text strings.Builder
	for i, kind := range []string{"Deployment", "ReplicaSet", "StatefulSet"} {
		fmt.Fprintf(&text, "---\n{apiVersion: apps/v1, kind: %s, metadata: {name: huge, namespace: t, uid: u%d}, "+
			"spec: {replicas: %d, selector: {matchLabels: {app: a}}, template: %s}}\n", kind, i, replicas, always)
	}
	fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: ReplicationController, metadata: {name: huge, namespace: t, uid: u8}, spec: {replicas: %d, selector: {app: a}, template: %s}}\n", replicas, always)
	fmt.Fprintf(&text, "---\n{apiVersion: batch/v1, kind: Job, metadata: {name: huge, namespace: t, uid: u9}, spec: {parallelism: %d, completions: %d, template: %s}}\n", replicas, replicas, pod)
	fmt.Fprintf(&text, "---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: usual, namespace: t, uid: u10}, "+
		"spec: {replicas: 3, selector: {matchLabels: {app: a}}, template: %s}}\n", always)
	return text.String()
}

// TestSumsOfReplicasAreBounded verifies that workloads of a recording with impossible numbers of
// replicas are not expanded and cause a warning each, and that such manifests are rejected.
func TestSumsOfReplicasAreBounded(t *testing.T) {
	for _, replicas := range []int{workload.Most/2 + 1, workload.Most, 2_000_000_000} {
		began := time.Now()
		set, err := Read([]string{"-"}, strings.NewReader(absurd(replicas)), Options{Lenient: true})
		if err != nil {
			t.Fatal(err)
		}
		warned := 5
		if replicas < workload.Most {
			warned = 4 // one of the five absurd workloads fits
		}
		if len(set.Warnings) != warned || replicas > workload.Most && !strings.Contains(strings.Join(set.Warnings, "\n"), "Deployment t/huge keeps its present pods") {
			t.Errorf("%d replicas: %d warnings, want %d: %q", replicas, len(set.Warnings), warned, set.Warnings)
		}
		if replicas > workload.Most {
			set.Expand(1)
			if len(set.Pods) != 3 {
				t.Errorf("%d replicas: %d pods are made, want 3", replicas, len(set.Pods))
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%d replicas: it took %v", replicas, took)
			}
		}

		_, err = Read([]string{"-"}, strings.NewReader(absurd(replicas)), Options{})
		if err == nil || !strings.Contains(err.Error(), "must be at most") && !strings.Contains(err.Error(), "the limit for all workloads together is") {
			t.Errorf("%d replicas in manifests: %v", replicas, err)
		}
	}
}

// TestDaemonSetsTimesNodesAreBounded verifies that DaemonSets are dropped if their pods on all
// nodes exceed the limit.
func TestDaemonSetsTimesNodesAreBounded(t *testing.T) {
	var text strings.Builder
	const nodes = 1000
	for i := range nodes {
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Node, metadata: {name: n%d}}\n", i)
	}
	const template = `{metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: i}]}}`
	for i := range workload.Most/nodes + 2 {
		fmt.Fprintf(&text, "---\n{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d%d, namespace: t}, spec: {selector: {matchLabels: {app: a}}, template: %s}}\n", i, template)
	}
	set, err := Read([]string{"-"}, strings.NewReader(text.String()), Options{Lenient: true})
	if err != nil || len(set.Warnings) != 2 || len(set.DaemonSets) != workload.Most/nodes {
		t.Fatalf("%d DaemonSets are left, with %q: %v", len(set.DaemonSets), set.Warnings, err)
	}
}
