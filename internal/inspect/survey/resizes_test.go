// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
)

// resizedWorld has a pod that grows to 3 CPU on a node of 4 CPU, and another pod of the given
// priority with 2 CPU. policy is the preemption policy of the node.
const resizedWorld = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {%s}
status: {allocatable: {cpu: "%s", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: grows, namespace: x, uid: a1, resourceVersion: "1"}
spec:
  nodeName: node-1
  priority: 10
  containers: [{name: c, image: i, resources: {requests: {cpu: "3"}}}]
status:
  phase: Running
  conditions: [{type: PodResizePending, status: "True", reason: Deferred}]
  containerStatuses: [{name: c, allocatedResources: {cpu: "1"}, resources: {requests: {cpu: "1"}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: x, uid: b1, resourceVersion: "1"}
spec:
  nodeName: node-1
  priority: %d
  containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]
status: {phase: Running}
`

// TestDeferredResizesAreExplained verifies that explain and pending report a deferred resize, and
// whether preemption makes room for it.
func TestDeferredResizesAreExplained(t *testing.T) {
	for _, row := range []struct {
		policy, cpu string
		priority    int
		want        string
	}{
		{"", "4", 0, "fits only without 1 other pod"},
		{"", "4", 10, "preemption does not help: 0/1 nodes are available"},
		{"", "5", 0, "fits now"},
		{"podPreemptionPolicy: {disableResizePreemption: [example.com/operator]}", "4", 0, "the podPreemptionPolicy of the node"},
	} {
		text := fmt.Sprintf(resizedWorld, row.policy, row.cpu, row.priority)
		set, err := manifest.Read([]string{"-"}, strings.NewReader(text), manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := simulate.Open(set, simulate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		e, err := explain.Of(w, explain.Options{Namespace: "x", Name: "grows"})
		if err != nil {
			t.Fatal(err)
		}
		if e.State != explain.Placed || !strings.Contains(e.Summary, row.want) {
			t.Errorf("%s %q, want %q", e.State, e.Summary, row.want)
		}
		p, err := survey.PendingOf(w, survey.Scope{}, simulate.Source{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Pods != 0 || !slices.Contains(p.Notes, "x/grows on node node-1: "+e.Resize) {
			t.Errorf("%d pods are pending, notes %q; want %q", p.Pods, p.Notes, e.Resize)
		}
	}
}
