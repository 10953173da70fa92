package survey_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
)

const hall = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x, uid: a1, resourceVersion: "1", labels: {app: a, pod-template-hash: 5d9f7}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-5d9f7, uid: r, controller: true}]}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "9"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: x, uid: b1, resourceVersion: "1", labels: {app: a, pod-template-hash: 5d9f7}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-5d9f7, uid: r, controller: true}]}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "9"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: paint, namespace: yy, uid: c1, resourceVersion: "1"}
spec: {containers: [{name: c, image: i, resources: {limits: {example.com/gpu: "1"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: claims, namespace: yy, uid: d1, resourceVersion: "1"}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: missing}}]
`

func world(t *testing.T) *simulate.World {
	t.Helper()
	set, err := manifest.Read([]string{"-"}, strings.NewReader(hall), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := simulate.Open(set, simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Pods of a workload are one line, of a Deployment that is not in the input, too; the reason is
// what has to change first.
func TestPendingByWorkload(t *testing.T) {
	p, err := survey.PendingOf(world(t), survey.Scope{}, simulate.Source{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Workloads) != 3 || p.Pods != 4 || p.Workloads[0].Name != "deployment/web" || len(p.Workloads[0].Pods) != 2 {
		t.Fatalf("%+v", p.Workloads)
	}
	if w := p.Workloads[0]; w.Reason != "Insufficient cpu" || w.Nodes != 1 || w.Help == "" {
		t.Errorf("web: %+v", w)
	}
	for _, w := range p.Workloads[1:] {
		switch w.Name {
		case "pod/paint":
			if w.Reason != "no node has example.com/gpu" {
				t.Errorf("paint: %q", w.Reason)
			}
		case "pod/claims":
			if strings.Count(w.Help, "create the claim") != 1 {
				t.Errorf("claims: %q", w.Help)
			}
		}
	}
	one, err := survey.PendingOf(world(t), survey.Scope{Namespace: "yy"}, simulate.Source{})
	if err != nil || one.Pods != 2 {
		t.Errorf("of one namespace: %+v, %v", one, err)
	}
	var out bytes.Buffer
	if err := p.Write(&out, "name"); err != nil || out.String() != "pod/a\npod/b\npod/claims\npod/paint\n" {
		t.Errorf("%v: %s", err, out.String())
	}
}
