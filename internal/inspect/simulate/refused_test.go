// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// applied is a cluster with objects of each kind that has immutable fields.
const applied = twoNodes + `
{apiVersion: v1, kind: Namespace, metadata: {name: default}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: leaving, deletionTimestamp: "2026-01-01T00:00:00Z"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web, tier: a}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: plain}
spec:
  selector: {matchLabels: {app: plain}}
  template: {metadata: {labels: {app: plain, tier: a}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent, tier: a}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  template: {metadata: {labels: {app: db, tier: a}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {backoffLimit: 3, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: later}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: alone}
spec: {tolerations: [{key: a, operator: Exists}], containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec: {schedulingGates: [{name: wait}], nodeSelector: {disk: ssd}, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: slow, resources: {requests: {storage: 2Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: full}
spec: {accessModes: [ReadWriteOnce], storageClassName: slow, volumeName: vol, resources: {requests: {storage: 2Gi}}}
status: {phase: Bound, capacity: {storage: 2Gi}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: vol}
spec: {capacity: {storage: 2Gi}, accessModes: [ReadWriteOnce], storageClassName: slow, csi: {driver: d, volumeHandle: one}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: slow}, provisioner: d}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000, globalDefault: true}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: kata}, handler: kata}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: most}, spec: {scopes: [BestEffort], hard: {pods: "50"}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu}
spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu}}]}}
---
{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu}, spec: {}}
`

// objectOf returns the text of an object in the cluster above, with replacements.
func objectOf(t *testing.T, kind, name string, changes ...string) string {
	t.Helper()
	for _, text := range strings.Split(applied, "\n---\n") {
		if strings.Contains(text, "kind: "+kind+"\n") || strings.Contains(text, "kind: "+kind+",") {
			if !strings.Contains(text, "name: "+name+"}") && !strings.Contains(text, "name: "+name+",") {
				continue
			}
			changed := strings.NewReplacer(changes...).Replace(text)
			if changed == text {
				t.Fatalf("%s %s has no %q", kind, name, changes[0])
			}
			return changed
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return ""
}

// TestApplyIsRefusedAsByTheAPIServer verifies that applying a refused manifest returns the API
// server's error, and that nothing of its set is applied.
func TestApplyIsRefusedAsByTheAPIServer(t *testing.T) {
	const immutable = ": field is immutable"
	for _, c := range []struct {
		kind, name string
		changes    []string
		want       string // empty if the API server accepts it
	}{
		{"Deployment", "web", []string{"matchLabels: {app: web}", "matchLabels: {tier: a}"},
			`Deployment.apps "web" is invalid: spec.selector: Invalid value: {"matchLabels":{"tier":"a"}}` + immutable},
		{"Deployment", "web", []string{"image: i", "image: j"}, ""},
		{"Deployment", "web", []string{"name: web}", "name: web, namespace: nowhere}"}, `namespaces "nowhere" not found`},
		{"Deployment", "web", []string{"name: web}", "name: web, namespace: leaving}"},
			`deployments.apps "web" is forbidden: unable to create new content in namespace leaving because it is being terminated`},
		{"ReplicaSet", "plain", []string{"matchLabels: {app: plain}", "matchLabels: {tier: a}"}, `ReplicaSet.apps "plain" is invalid: spec.selector`},
		{"DaemonSet", "agent", []string{"matchLabels: {app: agent}", "matchLabels: {tier: a}"}, `DaemonSet.apps "agent" is invalid: spec.selector`},
		{"StatefulSet", "db", []string{"matchLabels: {app: db}", "matchLabels: {tier: a}"}, `StatefulSet.apps "db" is invalid: spec.selector`},
		{"StatefulSet", "db", []string{"serviceName: db", "serviceName: other"},
			`StatefulSet.apps "db" is invalid: spec.serviceName: Invalid value: "other"` + immutable},
		{"StatefulSet", "db", []string{"serviceName: db", "serviceName: db\n  podManagementPolicy: Parallel"}, `spec.podManagementPolicy: Invalid value: "Parallel"` + immutable},
		{"StatefulSet", "db", []string{"storage: 1Gi", "storage: 2Gi"}, `spec.volumeClaimTemplates: Invalid value: `},
		// Fields filled in by a server do not count as changes, and other fields may change.
		{"StatefulSet", "db", []string{"serviceName: db", "serviceName: db\n  replicas: 3\n  podManagementPolicy: OrderedReady",
			"storage: 1Gi", "storage: 1024Mi"}, ""},
		{"Job", "once", []string{"image: i", "image: j"}, `Job.batch "once" is invalid: spec.template: Invalid value: `},
		{"Job", "once", []string{"backoffLimit: 3", "completions: 2"}, `spec.completions: Invalid value: 2` + immutable},
		{"Job", "once", []string{"backoffLimit: 3", "completions: 1, completionMode: Indexed"}, `spec.completionMode: Invalid value: "Indexed"` + immutable},
		{"Job", "once", []string{"backoffLimit: 3", "backoffLimitPerIndex: 3"}, `spec.backoffLimitPerIndex: Invalid value: 3` + immutable},
		{"Job", "once", []string{"backoffLimit: 3", "backoffLimit: 4, parallelism: 1, suspend: true, selector: null"}, ""},
		{"Job", "once", []string{"restartPolicy: Never", "restartPolicy: Never, dnsPolicy: ClusterFirst"}, ""},
		{"Job", "later", []string{"restartPolicy: Never", "restartPolicy: Never, nodeSelector: {disk: ssd}", "image: i", "image: i, resources: {requests: {cpu: 1}}"}, ""},
		{"Job", "later", []string{"image: i", "image: j"}, `spec.template.spec: Invalid value: `},
		{"Pod", "alone", []string{"cpu: \"1\"", "cpu: \"2\""},
			`Pod "alone" is invalid: spec: Forbidden: pod updates may not change fields other than ` + "`spec.containers[*].image`,"},
		{"Pod", "alone", []string{"tolerations: [{key: a, operator: Exists}]", "nodeSelector: {disk: ssd}"}, "Forbidden: pod updates may not change"},
		{"Pod", "alone", []string{"key: a", "key: b"}, `spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds`},
		{"Pod", "alone", []string{"containers: [", "containers: [{name: d, image: i}, "}, `spec.containers: Forbidden: pod updates may not add or remove containers`},
		{"Pod", "alone", []string{"tolerations: [", "schedulingGates: [{name: stop}], tolerations: ["},
			`spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'stop'`},
		{"Pod", "alone", []string{"tolerations: [", "activeDeadlineSeconds: 9, tolerations: [{key: b, operator: Exists}, ", "image: i", "image: j"}, ""},
		{"Pod", "alone", []string{"image: i", "image: \"i:2\""}, ""}, // this image has another default pull policy
		{"Pod", "gated", []string{"disk: ssd", "disk: hdd"}, `only additions to spec.nodeSelector are allowed (no mutations or deletions)`},
		{"Pod", "gated", []string{"disk: ssd", "disk: ssd, zone: a"}, ""},
		{"PersistentVolumeClaim", "data", []string{"slow", "fast"}, `PersistentVolumeClaim "data" is invalid: spec: Forbidden: ` +
			`spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims`},
		{"PersistentVolumeClaim", "data", []string{"storage: 2Gi", "storage: 3Gi"}, `spec: Forbidden: spec is immutable after creation`},
		{"PersistentVolumeClaim", "full", []string{"storage: 2Gi", "storage: 1Gi"},
			`spec.resources.requests.storage: Forbidden: field can not be less than status.capacity`},
		{"PersistentVolumeClaim", "full", []string{"storage: 2Gi", "storage: 3Gi"}, `persistentvolumeclaims "full" is forbidden: only dynamically provisioned pvc ` +
			`can be resized and the storageclass that provisions the pvc must support resize`},
		{"PersistentVolumeClaim", "full", []string{"volumeName: vol, ", ""}, ""},
		{"PersistentVolume", "vol", []string{"volumeHandle: one", "volumeHandle: two"}, `spec.persistentvolumesource: Forbidden: ` +
			`spec.persistentvolumesource is immutable after creation`},
		{"PersistentVolume", "vol", []string{"storage: 2Gi", "storage: 3Gi"}, ""},
		{"StorageClass", "slow", []string{"provisioner: d", "provisioner: e"}, `StorageClass.storage.k8s.io "slow" is invalid: provisioner: Invalid value: "e"` + immutable},
		{"StorageClass", "slow", []string{"provisioner: d", "provisioner: d, volumeBindingMode: WaitForFirstConsumer"}, `volumeBindingMode: Invalid value: `},
		{"StorageClass", "slow", []string{"provisioner: d", "provisioner: d, reclaimPolicy: Delete, allowVolumeExpansion: true"}, ""},
		{"PriorityClass", "high", []string{"value: 1000", "value: 2000"}, `PriorityClass.scheduling.k8s.io "high" is invalid: value: Forbidden: may not be changed in an update.`},
		{"PriorityClass", "high", []string{"value: 1000", "value: 1000, preemptionPolicy: Never"}, `preemptionPolicy: Invalid value: "Never"` + immutable},
		{"PriorityClass", "high", []string{"name: high", "name: other"},
			`priorityclasses.scheduling.k8s.io "other" is forbidden: PriorityClass high is already marked as default. Only one default can exist`},
		{"PriorityClass", "high", []string{"value: 1000", "value: 1000, description: d"}, ""},
		{"RuntimeClass", "kata", []string{"handler: kata", "handler: runsc"}, `RuntimeClass.node.k8s.io "kata" is invalid: handler: Invalid value: "runsc"` + immutable},
		{"ResourceQuota", "most", []string{"BestEffort", "NotBestEffort"}, `ResourceQuota "most" is invalid: spec.scopes: Invalid value: ["NotBestEffort"]` + immutable},
		{"ResourceQuota", "most", []string{`pods: "50"`, `pods: "60"`}, ""},
		{"ResourceClaim", "gpu", []string{"deviceClassName: gpu", "deviceClassName: gpu, count: 2"}, `ResourceClaim.resource.k8s.io "gpu" is invalid: spec: Invalid value: `},
		{"ResourceClaim", "gpu", []string{"deviceClassName: gpu", "deviceClassName: gpu, count: 1"}, ""},
	} {
		set := read(t, applied)
		set.Whole = true
		set.Expand(1)
		w, err := simulate.Open(set, simulate.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		w.Settle()
		before := len(w.Each())
		manifest := objectOf(t, c.kind, c.name, c.changes...)
		more := "\n---\n{apiVersion: v1, kind: Pod, metadata: {name: extra}, spec: {containers: [{name: c, image: i}]}}\n"
		_, err = w.Apply(read(t, manifest+more))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s %s, %q: %v", c.kind, c.name, c.changes[1], err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %s, %q: %v, want %s", c.kind, c.name, c.changes[1], err, c.want)
		case c.want != "" && (!strings.HasPrefix(err.Error(), "<stdin>:") || len(w.Each()) != before):
			t.Errorf("%s %s, %q: %v, %d pods instead of %d", c.kind, c.name, c.changes[1], err, len(w.Each()), before)
		}
	}
}

// TestFilesWithMistakesAreRefused verifies that applying files refuses fields that no scheduler
// reads as the API server does, for new and for changed objects. An API server has checked all
// other objects, such as the objects of a recording that omits some fields.
func TestFilesWithMistakesAreRefused(t *testing.T) {
	for _, c := range []struct {
		kind, name string
		changes    []string
		want       string
	}{
		{"Deployment", "web", []string{"image: i", "image: other"}, ""},
		{"Deployment", "web", []string{", image: i", ""}, `spec.template.spec.containers[0].image: Required value`}, // kubectl apply removes it
		{"Deployment", "web", []string{"containers: [{name: c", "containers: [{name: more"}, ""},
		{"Deployment", "web", []string{"name: c, image: i", "name: more"}, `spec.template.spec.containers[0].image: Required value`},
		{"Deployment", "web", []string{"name: web", "name: new", ", image: i", ""}, `"new" is invalid: spec.template.spec.containers[0].image: Required value`},
		{"Deployment", "web", []string{"image: i", "image: i, volumeMounts: [{name: v, mountPath: /v}]"}, `volumeMounts[0].name: Not found: "v"`},
		{"StatefulSet", "db", []string{"image: i", "image: i, volumeMounts: [{name: data, mountPath: /v}]"}, ""},
		{"Job", "once", []string{"name: once", "name: new", "restartPolicy: Never, ", ""}, `spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`},
	} {
		set := read(t, applied)
		set.Expand(1)
		w, err := simulate.Open(set, simulate.Options{Seed: 1, Read: func([]string, *manifest.Set) (*manifest.Set, error) {
			return read(t, objectOf(t, c.kind, c.name, c.changes...)), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Do(&simulate.Operation{Deploy: simulate.Files{"f"}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %s, %q: %v, want %q", c.kind, c.name, c.changes, err, c.want)
		}
	}
}

// TestPodsThatAdmissionRefuses verifies that it is an error to apply a pod that admission refuses,
// whereas a workload is stored although its pods are refused.
func TestPodsThatAdmissionRefuses(t *testing.T) {
	const cluster = twoNodes + `
{apiVersion: v1, kind: ResourceQuota, metadata: {name: few}, spec: {hard: {pods: "0"}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: picky, annotations: {scheduler.alpha.kubernetes.io/tolerationsWhitelist: '[{"key": "b", "operator": "Exists"}]'}}}
`
	const pod = "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: NAMESPACE}, " +
		"spec: {tolerations: [{key: a, operator: Exists}], containers: [{name: c, image: i}]}}"
	for text, want := range map[string]string{
		strings.Replace(pod, "NAMESPACE", "default", 1): `<stdin>:1: pods "p" is forbidden: exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0`,
		strings.Replace(pod, "NAMESPACE", "picky", 1):   `<stdin>:1: pods "p" is forbidden: pod tolerations`,
		manifestOf("", "1"):                             "",
	} {
		_, err := opened(t, cluster).Apply(read(t, text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestNamespacesThatManifestsCreateOrMayExist verifies that any namespace may exist if not all
// namespaces are known, and that manifests may create their own.
func TestNamespacesThatManifestsCreateOrMayExist(t *testing.T) {
	const pod = "\n---\n{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}, spec: {containers: [{name: c, image: i}]}}\n"
	for _, c := range []struct {
		whole bool
		text  string
		fails bool
	}{
		{true, pod, true},
		{false, pod, false},
		{true, pod + "---\n{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n", false},
	} {
		set := read(t, applied)
		set.Whole = c.whole
		set.Expand(1)
		w, err := simulate.Open(set, simulate.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.Apply(read(t, c.text)); (err != nil) != c.fails {
			t.Errorf("%v %s: %v", c.whole, c.text, err)
		}
	}
}

// TestApplyRemovesOnlyWhatItsLastManifestHad verifies that kubectl apply removes fields that the
// last manifest had and the new one lacks, and keeps all other fields, such as fields filled in by
// controllers.
func TestApplyRemovesOnlyWhatItsLastManifestHad(t *testing.T) {
	for _, c := range []struct {
		last, version string
		fails         bool
	}{
		{`{"spec":{"serviceName":"db"}}`, "7", true},
		{`{"spec":{}}`, "7", false},
		{"", "7", false},
		{"", "", true}, // hand-written, so the object is its own last manifest
	} {
		set := read(t, applied)
		for _, o := range set.OfKind("StatefulSet") {
			o.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": c.last})
			o.SetResourceVersion(c.version)
		}
		set.Expand(1)
		w, err := simulate.Open(set, simulate.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.Apply(read(t, objectOf(t, "StatefulSet", "db", "serviceName: db", "replicas: 2"))); (err != nil) != c.fails {
			t.Errorf("%s, version %q: %v", c.last, c.version, err)
		}
	}
}

// TestPermittedChangesOfPodsTakeEffect verifies that a pod without a node takes the changes that
// the API permits: further tolerations and, while it is gated, a narrower choice of nodes. Pods
// with a node and ended pods stay unchanged.
func TestPermittedChangesOfPodsTakeEffect(t *testing.T) {
	const pods = twoNodes + `
{apiVersion: v1, kind: Node, metadata: {name: node-3, labels: {disk: ssd}}, spec: {taints: [{key: a, effect: NoSchedule}]}, status: {allocatable: {cpu: "8", pods: "9"}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {GATES containers: [{name: c, image: i}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: ended}, spec: {nodeName: node-1, containers: [{name: c, image: i}]}, status: {phase: Succeeded}}
`
	w := opened(t, strings.Replace(pods, "GATES", "schedulingGates: [{name: one}, {name: two}], ", 1))
	for _, step := range []struct{ spec, node string }{
		{"schedulingGates: [{name: two}], nodeSelector: {disk: ssd}, ", ""},
		{"nodeSelector: {disk: ssd}, ", ""},
		{"nodeSelector: {disk: ssd}, tolerations: [{key: a, operator: Exists}], ", "node-3"},
		{"nodeSelector: {disk: ssd}, tolerations: [{key: a, operator: Exists}], ", "node-3"},
	} {
		done := apply(t, w, strings.Replace(pods, "GATES", step.spec, 1))
		f, _ := w.Find("default", "p")
		if f.Object.Spec.NodeName != step.node {
			t.Errorf("%s: on %q, want %q: %s", step.spec, f.Object.Spec.NodeName, step.node, f.Message)
		}
		if !slices.Contains(done.Notes, "pod default/ended is there already and is left as it is") {
			t.Errorf("%s: %q", step.spec, done.Notes)
		}
	}
}
