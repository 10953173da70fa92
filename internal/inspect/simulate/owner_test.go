// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"slices"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestPodsBelongToControllersByUID verifies that a pod belongs to the controller with the UID in
// its owner reference. Scaling a controller to 0 does not remove a pod that refers to the same name
// with another UID, nor a pod in another namespace.
func TestPodsBelongToControllersByUID(t *testing.T) {
	const pods = `
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web, uid: "1"}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: v1
kind: Namespace
metadata: {name: other}
---
apiVersion: v1
kind: Pod
metadata: {name: web-its, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: "1", controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-before, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: "0", controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-far, namespace: other, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: "1", controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
`
	w := opened(t, twoNodes+pods)
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "rs/web", Replicas: 0}})
	if got := names(w, "web-"); !slices.Equal(got, []string{"web-before", "web-far"}) {
		t.Errorf("after scaling to none: %v", got)
	}
}

// TestOtherKindsOfStatefulSets verifies that a StatefulSet of another API group is an ordinary
// controller: its replacement pod gets a new name.
func TestOtherKindsOfStatefulSets(t *testing.T) {
	const pod = `
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, ownerReferences: [{apiVersion: apps.kruise.io/v1beta1, kind: StatefulSet, name: db, uid: "1", controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
`
	w := opened(t, twoNodes+pod)
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/db-0"}})
	if got := names(w, "db-"); len(got) != 1 || got[0] == "db-0" {
		t.Errorf("made again: %v", got)
	}
}
