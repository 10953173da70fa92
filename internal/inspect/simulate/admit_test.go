// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestExistingPodsAreChargedFirst verifies that existing pods are charged to a quota before their
// controller creates new ones, regardless of their order in the input.
func TestExistingPodsAreChargedFirst(t *testing.T) {
	for _, kind := range []string{"ReplicaSet", "ReplicationController"} {
		api, selector := "apps/v1", "{matchLabels: {app: a}}"
		if kind == "ReplicationController" {
			api, selector = "v1", "{app: a}"
		}
		w := opened(t, twoNodes+fmt.Sprintf(`
apiVersion: v1
kind: ResourceQuota
metadata: {name: q}
spec: {hard: {pods: "1"}}
---
apiVersion: %[1]s
kind: %[2]s
metadata: {name: w, uid: w}
spec: {replicas: 2, selector: %[3]s, template: {metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: there, uid: there, labels: {app: a}, ownerReferences: [{apiVersion: %[1]s, kind: %[2]s, name: w, uid: w, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {phase: Running}
`, api, kind, selector))
		for _, f := range w.Each() {
			if f.Object.Name != "there" && !strings.Contains(f.Refused, "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1") {
				t.Errorf("%s: a second pod, refused for %q", kind, f.Refused)
			}
		}
	}
}

// TestAQuotaRefusesReplacements verifies that a quota below current usage refuses the replacement
// of a departed pod until the quota is raised.
func TestAQuotaRefusesReplacements(t *testing.T) {
	w := opened(t, twoNodes+storedDeployment)
	apply(t, w, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: few, namespace: default}\nspec: {hard: {pods: \"2\"}}\n")
	first := names(w, "web-")[0]
	do(t, w, simulate.Operation{Evict: &simulate.Evict{Pods: []string{first}}})
	d := w.Departures()[0]
	if _, node, message, ok := d.Next(); !ok || node != "" || !strings.Contains(message, "exceeded quota: few") {
		t.Fatalf("%s: its replacement is on %q: %s", first, node, message)
	}
	apply(t, w, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: few, namespace: default}\nspec: {hard: {pods: \"3\"}}\n")
	if _, node, message, _ := d.Next(); node == "" {
		t.Errorf("the quota has room again, and the replacement is still refused: %s", message)
	}
}
