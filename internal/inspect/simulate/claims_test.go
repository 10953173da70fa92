// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestDrainOfAPodWithANamedClaim verifies that a drained pod releases its named claim once it is
// removed, and its successor gets a device of another node.
func TestDrainOfAPodWithANamedClaim(t *testing.T) {
	w := opened(t, twoNodes+`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-1}
spec: {driver: gpu.example.com, nodeName: node-1, pool: {name: node-1, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-2}
spec: {driver: gpu.example.com, nodeName: node-2, pool: {name: node-2, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared, namespace: default, uid: shared, resourceVersion: "1"}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}
status:
  allocation:
    devices: {results: [{request: r, driver: gpu.example.com, pool: node-1, device: gpu-0}]}
    nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [node-1]}]}]}
  reservedFor: [{resource: pods, name: p, uid: u}]
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: rs, namespace: default, uid: rs}
spec:
  replicas: 1
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      resourceClaims: [{name: d, resourceClaimName: shared}]
      containers: [{name: c, image: i, resources: {claims: [{name: d}]}}]
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default, uid: u, labels: {app: a}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: rs, uid: rs, controller: true}]}
spec:
  nodeName: node-1
  resourceClaims: [{name: d, resourceClaimName: shared}]
  containers: [{name: c, image: i, resources: {claims: [{name: d}]}}]
status: {phase: Running, conditions: [{type: Ready, status: "True"}]}
`)
	do(t, w, simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}})
	left := w.Departures()
	if len(left) != 1 {
		t.Fatalf("left: %+v", left)
	}
	if _, node, message, _ := left[0].Next(); node != "node-2" {
		t.Errorf("the successor is on %q: %s", node, message)
	}
}

// TestStalledProvisioners verifies that volumes of a storage class are not provisioned if one of
// its claims has waited for too long, or if its driver is not installed.
func TestStalledProvisioners(t *testing.T) {
	const objects = twoNodes + `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: csi.example.com
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: old, namespace: default, uid: old, resourceVersion: "1", creationTimestamp: "CREATED", annotations: {volume.kubernetes.io/selected-node: node-2}}
spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: asked, namespace: default, uid: asked, resourceVersion: "1"}
spec: {containers: [{name: c, image: i}], volumes: [{name: v, persistentVolumeClaim: {claimName: old}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: next}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]
---
`
	const driver = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: csi.example.com}\n"
	for _, c := range []struct {
		name, more    string
		asked         time.Duration // time since the request; 0 for never
		whole, stalls bool
	}{
		{"just asked", driver, time.Second, true, false},
		{"asked long ago", driver, time.Hour, true, true},
		{"asked of none", "", time.Second, false, true},
		{"not installed", "", 0, true, true},
		{"maybe installed", "", 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
			text := strings.ReplaceAll(objects, "CREATED", now.Add(-c.asked).Format(time.RFC3339)) + c.more
			if c.asked == 0 {
				text = strings.ReplaceAll(text, ", annotations: {volume.kubernetes.io/selected-node: node-2}", "")
			}
			set := read(t, text)
			set.Whole = c.whole
			w, err := simulate.Open(set, simulate.Options{Now: now})
			if err != nil {
				t.Fatal(err)
			}
			w.Settle()
			w.AdvanceUntilQuiet(time.Hour)
			for _, name := range []string{"asked", "next"} {
				f, _ := w.Find("default", name)
				waits := strings.Contains(f.Message, "waits for csi.example.com to make a volume of storageclass \"fast\" on node-")
				if waits != c.stalls || (f.Pod.NodeName == "") != c.stalls {
					t.Errorf("%s is on %q: %q", name, f.Pod.NodeName, f.Message)
				}
			}
			if list := w.Pods(); len(list) != 2 || (list[0].Node == "") != c.stalls || (list[1].Node == "") != c.stalls {
				t.Errorf("listed: %+v", list)
			}
		})
	}
}

// TestVersionsOfObjectsMakeNoDifference verifies that a world's outcome does not depend on the
// resourceVersions of the cluster's objects, which objects changed by the world lack.
func TestVersionsOfObjectsMakeNoDifference(t *testing.T) {
	for name, text := range map[string]string{"town": busyTown(), "budget": spreadWithBudget("ScheduleAnyway", 2)} {
		t.Run(name, func(t *testing.T) {
			answer := func(stored bool) string {
				set := read(t, text)
				if stored {
					giveVersions(set)
				}
				s, err := simulate.Run(set, simulate.Options{
					Seed: 1, For: 20 * time.Minute, Scenario: scenario(t, "- {at: 1m, drain: {node: node-1, force: true, deleteEmptydirData: true}}\n"),
				})
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				if err := s.Write(&b, "json"); err != nil {
					t.Fatal(err)
				}
				return b.String()
			}
			if diff := cmp.Diff(answer(false), answer(true)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// giveVersions sets a resourceVersion on all objects except pods, since a pod with one has already
// passed admission.
func giveVersions(set *manifest.Set) {
	lists := reflect.ValueOf(set).Elem()
	for i := range lists.NumField() {
		list := lists.Field(i)
		if list.Kind() != reflect.Slice || !list.CanInterface() {
			continue
		}
		for j := range list.Len() {
			if object, ok := list.Index(j).Interface().(metav1.Object); ok && reflect.TypeOf(object) != reflect.TypeFor[*v1.Pod]() {
				object.SetResourceVersion("1")
			}
		}
	}
}
