package simulate_test

import (
	"fmt"
	"strings"
	"testing"
)

// Pods that exist count against a quota before their controller makes new ones, wherever they stand
// in the input.
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
