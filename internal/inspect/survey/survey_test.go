// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/explain"
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

// TestPendingByWorkload verifies that the pods of a workload are printed on one line, even for a
// Deployment missing from the input, and that the reason is the first thing to change.
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

// TestPodsThatPreempt verifies that pods from manifests are tried in queue order, and that pods
// that make room for themselves are distinguished from pods for which no victims remain.
func TestPodsThatPreempt(t *testing.T) {
	const full = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 10
---
apiVersion: v1
kind: Pod
metadata: {name: low-1}
spec: {nodeName: node-1, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: low-2}
spec: {nodeName: node-1, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 3, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {priorityClassName: high, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}}}
`
	for _, grace := range []string{"30", "0"} {
		text := strings.ReplaceAll(full, "{nodeName:", "{terminationGracePeriodSeconds: "+grace+", nodeName:")
		set, err := manifest.Read([]string{"-"}, strings.NewReader(text), manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		set.Expand(1)
		w, err := simulate.Open(set, simulate.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		p, err := survey.PendingOf(w, survey.Scope{}, simulate.Source{})
		if err != nil {
			t.Fatal(err)
		}
		why := map[string]int{}
		for _, one := range p.Workloads {
			why[one.Reason] = len(one.Pods)
		}
		if len(why) != 2 || why["preempts 1 pod on node-1"] != 2 || why["Insufficient cpu"] != 1 {
			t.Errorf("grace period %s: %v", grace, why)
		}
	}
}

// TestOfAGroupItSaysHowManyCanBePlaced verifies that a group's entry reports how many pods can be
// placed: three of four are enough, and the fourth finds no room.
func TestOfAGroupItSaysHowManyCanBePlaced(t *testing.T) {
	text := `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "3", memory: 8Gi, pods: "110"}}
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: train}
spec: {schedulingPolicy: {gang: {minCount: 3}}}
`
	for _, name := range []string{"a", "b", "c", "d"} {
		text += `---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, uid: ` + name + `, resourceVersion: "1"}
spec: {schedulingGroup: {podGroupName: train}, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
`
	}
	set, err := manifest.Read([]string{"-"}, strings.NewReader(text), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := simulate.Open(set, simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := survey.PendingOf(w, survey.Scope{}, simulate.Source{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Workloads) != 1 || p.Workloads[0].Reason != "3 of 4 pods can be placed, and are scheduled when their turn comes" {
		t.Errorf("%+v", p.Workloads)
	}
}

// TestPodsThatDoNotExistAreCounted verifies that pods prevented by a quota, which are missing from
// every list, are counted by their owner's desired number. Pods of an ordered StatefulSet wait for
// the first one.
func TestPodsThatDoNotExistAreCounted(t *testing.T) {
	const quota = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: two}
spec: {hard: {pods: "2"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, uid: d, resourceVersion: "1", labels: {app: web}}
spec: {replicas: 4, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-1, uid: r, resourceVersion: "1", ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: d, controller: true}]}
spec: {replicas: 4, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
STATUS
---
apiVersion: v1
kind: Pod
metadata: {name: web-1-a, uid: a, resourceVersion: "1", labels: {app: web}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: r, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, uid: s, resourceVersion: "1"}
spec: {replicas: 3, serviceName: db, selector: {matchLabels: {app: db}}, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, uid: b, resourceVersion: "1", labels: {app: db}, ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: s, controller: true}]}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "9"}}}]}
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old, uid: o, resourceVersion: "1"}
spec: {replicas: 2, selector: {app: old}, template: {metadata: {labels: {app: old}}, spec: {containers: [{name: c, image: i}]}}}
status: {replicas: 0, conditions: [{type: ReplicaFailure, status: "True", reason: FailedCreate, message: 'pods "old-xyz" is forbidden: as ever', lastTransitionTime: "2026-11-20T10:00:00Z"}]}
`
	const failed = `status: {replicas: 1, conditions: [{type: ReplicaFailure, status: "True", reason: FailedCreate, message: 'pods "web-1-xyz" is forbidden: no luck', lastTransitionTime: "2026-11-20T10:00:00Z"}]}`
	for status, want := range map[string]string{
		"":     "cannot be created: exceeded quota: two, requested: pods=1, used: pods=2, limited: pods=2",
		failed: "cannot be created: no luck", // the controller's own message takes precedence
	} {
		set, err := manifest.Read([]string{"-"}, strings.NewReader(strings.Replace(quota, "STATUS", status, 1)), manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := simulate.Open(set, simulate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := survey.PendingOf(w, survey.Scope{}, simulate.Source{})
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if err := p.Write(&text, ""); err != nil {
			t.Fatal(err)
		}
		words := strings.Join(strings.Fields(text.String()), " ")
		for _, line := range []string{
			"deployment/web 3 missing", want, "statefulset/db 2 missing", "1 pod pending and 7 missing, of 3 workloads",
			"replicationcontroller/old 2 missing", "cannot be created: as ever",
		} {
			if !strings.Contains(words, line) {
				t.Errorf("no %q in\n%s", line, text.String())
			}
		}
	}
}

// TestAPluginsFailureIsNoReason verifies that the failure of a plugin is not the reason if another
// plugin rejects the pod's claim.
func TestAPluginsFailureIsNoReason(t *testing.T) {
	set, err := manifest.Read([]string{"-"}, strings.NewReader(`
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: p-v}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]
`), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := simulate.Open(set, simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := survey.PendingOf(w, survey.Scope{}, simulate.Source{})
	if err != nil {
		t.Fatal(err)
	}
	if one := p.Workloads[0]; one.Plugin != "VolumeBinding" || !strings.Contains(one.Reason, "PVC default/p-v was not created for pod") {
		t.Errorf("%+v", one)
	}
}

// TestAPodThatWaitsForItsProvisioner verifies that a pod with a chosen node is not reported as
// waiting for its turn.
func TestAPodThatWaitsForItsProvisioner(t *testing.T) {
	set, err := manifest.Read([]string{"-"}, strings.NewReader(`
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: csi.example.com
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, annotations: {volume.kubernetes.io/selected-node: node-1}}
spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 5Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, uid: p, resourceVersion: "1"}
spec: {schedulerName: default-scheduler, containers: [{name: c, image: i}], volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]}
`), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := simulate.Open(set, simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := survey.PendingOf(w, survey.Scope{}, simulate.Source{})
	if err != nil || len(p.Workloads) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	if one := p.Workloads[0]; one.State != explain.Pending || !strings.Contains(one.Reason, `"data" waits for csi.example.com to make a volume`) {
		t.Errorf("%s: %s", one.State, one.Reason)
	}
}

// TestReasonsNameClaims verifies that claims and their users are named for pods pending for devices
// or volumes, because the reason itself does not name them.
func TestReasonsNameClaims(t *testing.T) {
	const devices = `
apiVersion: v1
kind: Node
metadata: {name: a}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Node
metadata: {name: b}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: of-b}
spec: {driver: gpu.example.com, nodeName: b, pool: {name: b, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: five, namespace: x}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu, allocationMode: ExactCount, count: 5}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: trains, namespace: x, uid: t, resourceVersion: "1"}
spec: {containers: [{name: c, image: i}], resourceClaims: [{name: d, resourceClaimName: five}]}
---
apiVersion: v1
kind: Pod
metadata: {name: lacks, namespace: x, uid: l, resourceVersion: "1"}
spec: {containers: [{name: c, image: i}], resourceClaims: [{name: d, resourceClaimName: absent}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: x}
spec: {storageClassName: absent, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: stores, namespace: x, uid: s, resourceVersion: "1"}
spec: {containers: [{name: c, image: i}], volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]}
`
	set, err := manifest.Read([]string{"-"}, strings.NewReader(devices), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := simulate.Open(set, simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := survey.PendingOf(w, survey.Scope{}, simulate.Source{})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := p.Write(&text, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`could not find ResourceClaim "x/absent"`,
		"2 of 2 nodes: cannot allocate all claims (claim five, request r: wants 5 of class gpu, 1 present, 1 free on b)",
		`2 of 2 nodes: pod has unbound immediate PersistentVolumeClaims (persistentvolumeclaim "data": storageclass "absent" not found)`,
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s\nlacks %s", &text, want)
		}
	}
}

// TestHeldEvictionsAreListed verifies that an eviction held by the guard is listed until the guard
// admits it, with the deadline, and that an old request is not listed.
func TestHeldEvictionsAreListed(t *testing.T) {
	const town = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
`
	pod := func(name, requested, status string) string {
		return `---
apiVersion: v1
kind: Pod
metadata:
  {name: ` + name + `, namespace: x, uid: ` + name + `, labels: {pod-template-hash: 5d9f7},
  annotations: {berth.dev/eviction-requested: "` + requested + `", berth.dev/eviction-status: "` + status + `"},
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-5d9f7, uid: r, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {phase: Running, conditions: [{type: Ready, status: "True"}]}
`
	}
	text := town + pod("held", "2026-11-27T12:00:00Z", "held: waiting until the replacement web-2 on node-2 is ready") +
		pod("new", "2026-11-27T12:01:00Z", "") + pod("admitted", "2026-11-27T12:00:00Z", "admitted: cannot surge") +
		pod("old", "2026-11-27T09:00:00Z", "held: too many pods are being replaced") +
		strings.Replace(pod("ended", "2026-11-27T12:00:00Z", "held: waiting until it finishes"), "Running", "Succeeded", 1) +
		strings.Replace(pod("soon", "2026-11-27T12:01:30Z", "held: waiting"), "namespace: x", "namespace: shop", 1) + `---
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {berth.dev/eviction-deadline: 1m}}
`
	set, err := manifest.Read([]string{"-"}, strings.NewReader(text), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := simulate.Open(set, simulate.Options{Now: time.Date(2026, 11, 27, 12, 2, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := survey.EvictionsOf(w, survey.Scope{}, simulate.Source{}).Write(&out, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"8m    2026-11-27 12:10:00Z", "deployment/web   held since 12:00:00Z: waiting until the replacement web-2 on node-2 is ready",
		"held since 12:01:00Z: waiting for the guard", "30s   2026-11-27 12:02:30Z", "3 pods to leave",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, out.String())
		}
	}
}
