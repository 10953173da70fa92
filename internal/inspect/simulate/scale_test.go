package simulate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Pods of hand-written manifests that are on nodes run and are ready, though no status says so:
// the youngest goes when their ReplicaSet is scaled down, and not the first that stands there.
func TestPodsWithoutAStatusAreNotScaledDownFirst(t *testing.T) {
	text := twoNodes + `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web, uid: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}}
`
	for i, node := range []string{"node-1", "node-2"} {
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata:
  name: web-%d
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels: {app: web}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: web, controller: true}]
spec: {nodeName: %s, containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
`, i, node)
	}
	set := read(t, text)
	set.Expand(1)
	w, err := simulate.Open(set, simulate.Options{Now: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "replicaset/web", Replicas: 2}})
	if got := names(w, "web-"); !slices.Equal(got, []string{"web-0", "web-1"}) {
		t.Errorf("what stays: %q", got)
	}
}
