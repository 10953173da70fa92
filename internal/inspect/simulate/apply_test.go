// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// opened returns a world after all pending pods have been tried.
func opened(t *testing.T, text string) *simulate.World {
	t.Helper()
	set := read(t, text)
	set.Expand(1)
	w, err := simulate.Open(set, simulate.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	return w
}

func apply(t *testing.T, w *simulate.World, text string) *simulate.Done {
	t.Helper()
	done, err := w.Apply(read(t, text))
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	return done
}

func do(t *testing.T, w *simulate.World, op simulate.Operation) *simulate.Done {
	t.Helper()
	done, err := w.Do(&op)
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	return done
}

// names lists the pods with the given name prefix.
func names(w *simulate.World, prefix string) (list []string) {
	for _, f := range w.Each() {
		if strings.HasPrefix(f.Object.Name, prefix) {
			list = append(list, f.Object.Name)
		}
	}
	return list
}

const twoNodes = `
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {kubernetes.io/hostname: node-1}}
status: {allocatable: {cpu: "8", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Node
metadata: {name: node-2, labels: {kubernetes.io/hostname: node-2}}
status: {allocatable: {cpu: "8", memory: 8Gi, pods: "110"}}
---
`

const storedDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  uid: 5f1c
  resourceVersion: "7"
  creationTimestamp: "2026-01-01T00:00:00Z"
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {kubectl.kubernetes.io/restartedAt: "2026-01-01"}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node-1}
      restartPolicy: Always
      dnsPolicy: ClusterFirst
      schedulerName: default-scheduler
      securityContext: {}
      terminationGracePeriodSeconds: 30
      containers:
      - {name: c, image: "i:1", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, resources: {requests: {cpu: "1"}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web-1
  uid: 77aa
  creationTimestamp: "2026-01-01T00:00:00Z"
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: 5f1c, controller: true}]
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {nodeSelector: {kubernetes.io/hostname: node-1}, containers: [{name: c, image: "i:1", resources: {requests: {cpu: "1"}}}]}
`

const webManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      NODES
      containers: [{name: c, image: "i:1", resources: {requests: {cpu: IT}}}]
`

func manifestOf(nodes, cpu string) string {
	return strings.NewReplacer("NODES", nodes, "IT", cpu).Replace(webManifest)
}

const onNode1 = "nodeSelector: {kubernetes.io/hostname: node-1}"

// TestTheSameManifestAppliedAgainChangesNothing verifies that fields defaulted by the API server,
// and another spelling of a quantity, do not count as changes. A manifest without a replica count
// leaves the existing count unchanged, because an autoscaler may manage it.
func TestTheSameManifestAppliedAgainChangesNothing(t *testing.T) {
	w := opened(t, twoNodes+storedDeployment)
	before := names(w, "web-")
	apply(t, w, manifestOf(onNode1, "1000m"))
	if diff := cmp.Diff(before, names(w, "web-")); len(before) != 3 || diff != "" {
		t.Error(diff)
	}
}

// TestAChangedTemplateIsRolledOutOnce verifies that a changed template is rolled out once. The pods
// belong to a new ReplicaSet, and later scaling applies to it.
func TestAChangedTemplateIsRolledOutOnce(t *testing.T) {
	w := opened(t, twoNodes+storedDeployment)
	before := names(w, "web-")
	apply(t, w, manifestOf("", "2"))
	first := names(w, "web-")
	if len(first) != 3 || slices.ContainsFunc(before, func(name string) bool { return slices.Contains(first, name) }) {
		t.Fatalf("%v, then %v", before, first)
	}
	apply(t, w, manifestOf("", "2"))
	if diff := cmp.Diff(first, names(w, "web-")); diff != "" {
		t.Errorf("applied again: %s", diff)
	}
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 4}})
	pods := names(w, "web-")
	if len(pods) != 4 {
		t.Fatalf("scaled to 4: %v", pods)
	}
	for _, name := range pods {
		f, _ := w.Find("default", name)
		if cpu := f.Object.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]; cpu.String() != "2" || len(f.Object.Spec.NodeSelector) != 0 {
			t.Errorf("%s is of the old template", name)
		}
	}
	apply(t, w, manifestOf(onNode1, "1"))
	if back := names(w, "web-"); len(back) != 4 || slices.ContainsFunc(back, func(name string) bool { return slices.Contains(pods, name) }) {
		t.Errorf("rolled back, and no number was named: %v", back)
	}
}

func TestStrategiesThatDoNotRollOut(t *testing.T) {
	const workload = `
apiVersion: apps/v1
kind: KIND
metadata: {name: web}
spec:
  STRATEGY
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "i:1", resources: {requests: {cpu: CPU}}}]}
`
	for _, c := range []struct {
		kind, strategy string
		stay           int
	}{
		{"Deployment", "{replicas: 3, paused: true", 3},
		{"StatefulSet", "{replicas: 3, updateStrategy: {type: OnDelete}", 3},
		{"StatefulSet", "{replicas: 3, updateStrategy: {rollingUpdate: {partition: 2}}", 2},
		{"StatefulSet", "{replicas: 3", 0},
		{"DaemonSet", "{updateStrategy: {type: OnDelete}", 2},
		{"DaemonSet", "{", 0},
	} {
		strategy := strings.ReplaceAll(strings.Trim(c.strategy, "{"), ", ", "\n  ")
		text := strings.NewReplacer("KIND", c.kind, "STRATEGY", strategy).Replace(workload)
		w := opened(t, twoNodes+strings.Replace(text, "CPU", "1", 1))
		all := len(names(w, "web"))
		apply(t, w, strings.Replace(text, "CPU", "2", 1))
		stay := 0
		for _, f := range w.Each() {
			if cpu := f.Object.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]; cpu.String() == "1" {
				stay++
			}
		}
		if stay != c.stay || len(names(w, "web")) != all {
			t.Errorf("%s %s: %d of %d stay, want %d", c.kind, c.strategy, stay, all, c.stay)
		}
	}
}

const gappy = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, uid: d1}
spec:
  replicas: 3
  ORDINALS
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: i}]}
`

func db(ordinal int, status string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: db-%d, uid: p%d, resourceVersion: "1", labels: {app: db}%s, ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: d1, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
`, ordinal, ordinal, status)
}

// TestAStatefulSetIsScaledByOrdinals verifies that a StatefulSet keeps the pods with the wanted
// ordinals, whichever ordinals exist.
func TestAStatefulSetIsScaledByOrdinals(t *testing.T) {
	ordinals := "ordinals: {start: 5}"
	w := opened(t, twoNodes+strings.Replace(gappy, "ORDINALS", ordinals, 1)+db(7, ""))
	if diff := cmp.Diff([]string{"db-5", "db-6", "db-7"}, names(w, "db-")); diff != "" {
		t.Fatal(diff)
	}
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/db-5"}})
	for replicas, want := range map[int][]string{4: {"db-5", "db-6", "db-7", "db-8"}, 2: {"db-5", "db-6"}} {
		do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "statefulset/db", Replicas: replicas}})
		if diff := cmp.Diff(want, names(w, "db-")); diff != "" {
			t.Errorf("%d replicas: %s", replicas, diff)
		}
	}
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "statefulset/db", Replicas: 4}})
	f, _ := w.Find("default", "db-8")
	if len(f.Object.Spec.Volumes) != 1 || f.Object.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "data-db-8" {
		t.Errorf("its volumes: %+v", f.Object.Spec.Volumes)
	}
	if _, there := w.Cluster().Claims.Get("default", "data-db-8"); !there {
		t.Error("its claim is missing")
	}
}

// TestAStatefulSetDoesNotMakeAgainWhatItWasScaledDownBy verifies that a StatefulSet does not
// recreate an ended pod removed by scaling down.
func TestAStatefulSetDoesNotMakeAgainWhatItWasScaledDownBy(t *testing.T) {
	due := `, deletionTimestamp: "2026-01-01T00:00:30Z", deletionGracePeriodSeconds: 30, creationTimestamp: "2026-01-01T00:00:00Z"`
	w := opened(t, twoNodes+strings.Replace(gappy, "ORDINALS", "", 1)+db(0, due)+db(1, "")+db(2, "")+db(3, due))
	w.Advance(time.Minute)
	if diff := cmp.Diff([]string{"db-0", "db-1", "db-2"}, names(w, "db-")); diff != "" {
		t.Error(diff)
	}
}

// TestPodsThatHaveEndedAreMadeAgain verifies that an ended pod keeps neither its ordinal nor its
// node. Its controller recreates the pod when it is deleted; a StatefulSet recreates the pod even
// without a deletion.
func TestPodsThatHaveEndedAreMadeAgain(t *testing.T) {
	const failed = "status: {phase: Failed}\n"
	w := opened(t, twoNodes+strings.Replace(gappy, "ORDINALS", "", 1)+db(0, "")+db(1, "")+failed+db(2, ""))
	if f, _ := w.Find("default", "db-1"); f.Pod == nil || f.Object.UID == "p1" {
		t.Errorf("db-1 as its manifest has it: %+v", f.Object.Status)
	}
	// This is the cluster's state before the controller has acted.
	set := read(t, twoNodes+strings.Replace(gappy, "ORDINALS", "", 1)+db(0, "")+db(1, "")+failed+db(2, "")+`---
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
`+failed)
	w, err := simulate.Open(set, simulate.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	done := do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/bare"}})
	if _, there := w.Find("default", "bare"); there || len(done.Notes) != 1 || !strings.Contains(done.Notes[0], "has ended (Failed)") {
		t.Errorf("bare is there: %t, notes %q", there, done.Notes)
	}
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/db-1"}})
	if f, _ := w.Find("default", "db-1"); f.Pod == nil {
		t.Errorf("db-1 was deleted: %+v", f.Object)
	}
	w, err = simulate.Open(set, simulate.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "statefulset/db", Replicas: 4}})
	if f, _ := w.Find("default", "db-1"); f.Pod == nil || len(names(w, "db-")) != 4 {
		t.Errorf("scaled: %v, db-1 %+v", names(w, "db-"), f.Object.Status)
	}
}

// TestAFinalizerKeepsThePodOfAnOrdinal verifies that a finalizer keeps an ended pod, and with it
// the pod's name, so its StatefulSet creates no replacement.
func TestAFinalizerKeepsThePodOfAnOrdinal(t *testing.T) {
	manifests := twoNodes + strings.Replace(gappy, "ORDINALS", "", 1) + db(0, "") + db(1, ", finalizers: [example.com/logs]") + "status: {phase: Failed}\n" + db(2, "")
	w := opened(t, manifests)
	if f, _ := w.Find("default", "db-1"); f.Pod != nil || f.Object.UID != "p1" {
		t.Errorf("db-1 as its manifest has it: %+v", f.Object.ObjectMeta)
	}
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "statefulset/db", Replicas: 4}})
	if f, _ := w.Find("default", "db-1"); f.Pod != nil || f.Object.UID != "p1" || len(names(w, "db-")) != 4 {
		t.Errorf("scaled: %v, db-1 %+v", names(w, "db-"), f.Object.ObjectMeta)
	}
	done := do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/db-1"}})
	if f, _ := w.Find("default", "db-1"); f.Pod != nil || f.Object.UID != "p1" || len(done.Notes) != 1 || !strings.Contains(done.Notes[0], "example.com/logs") {
		t.Errorf("deleted: db-1 %+v, notes %q", f.Object.ObjectMeta, done.Notes)
	}
}

// TestAppliedClaimsStayBound verifies that applying a StatefulSet or a claim again does not unbind
// the claim from its volume.
func TestAppliedClaimsStayBound(t *testing.T) {
	const claim = `---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-db-0, uid: c0}
spec: {accessModes: [ReadWriteOnce], volumeName: disk, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], claimRef: {namespace: default, name: data-db-0, uid: c0}, nfs: {server: s, path: /}}
`
	w := opened(t, twoNodes+strings.Replace(gappy, "ORDINALS", "", 1)+claim)
	apply(t, w, strings.Replace(gappy, "ORDINALS", "", 1)+strings.Replace(strings.Replace(claim, "volumeName: disk, ", "", 1), "claimRef: {namespace: default, name: data-db-0, uid: c0}, ", "", 1))
	if c, _ := w.Cluster().Claims.Get("default", "data-db-0"); c.Spec.VolumeName != "disk" {
		t.Errorf("the claim has the volume %q", c.Spec.VolumeName)
	}
	if v, _ := w.Cluster().Volumes.Get("", "disk"); v.Spec.ClaimRef == nil {
		t.Error("the volume is free")
	}
}

// TestDeletedWorkloadsAreGone verifies that a deleted workload cannot be scaled and creates no
// pods. A Deployment recreates a deleted ReplicaSet and its pods.
func TestDeletedWorkloadsAreGone(t *testing.T) {
	const job = `---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}
`
	w := opened(t, twoNodes+storedDeployment+job)
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "job/once"}})
	if done := apply(t, w, job); len(done.Notes) != 0 || len(names(w, "once")) != 1 {
		t.Errorf("the job is not made anew: %v", done.Notes)
	}
	before := names(w, "web-")
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "rs/web-1"}})
	if again := names(w, "web-"); len(again) != 3 || slices.ContainsFunc(again, func(name string) bool { return slices.Contains(before, name) }) {
		t.Errorf("the Deployment's ReplicaSet: %v, then %v", before, again)
	}
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "deployment/web"}})
	for _, ref := range []string{"deployment/web", "rs/web-1"} {
		if _, err := w.Do(&simulate.Operation{Scale: &simulate.Scale{Workload: ref, Replicas: 2}}); err == nil {
			t.Errorf("%s is still there", ref)
		}
	}
	if left := names(w, "web-"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAReplicaSetAppliedAgainIsScaled(t *testing.T) {
	const text = `
apiVersion: KIND
metadata: {name: web}
spec: {replicas: N, selector: SELECTOR, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
`
	for kind, selector := range map[string]string{
		"apps/v1\nkind: ReplicaSet": "{matchLabels: {app: web}}", "v1\nkind: ReplicationController": "{app: web}",
	} {
		rs := strings.NewReplacer("KIND", kind, "SELECTOR", selector).Replace(text)
		w := opened(t, twoNodes+strings.Replace(rs, "N,", "2,", 1))
		for _, n := range []string{"2", "3", "1"} {
			done := apply(t, w, strings.Replace(rs, "N,", n+",", 1))
			if got := fmt.Sprint(len(names(w, "web-"))); got != n || len(done.Notes) > 0 {
				t.Errorf("%s: %s pods, want %s: %v", kind, got, n, done.Notes)
			}
		}
	}
}

// TestAnAppliedNodeKeepsWhatIsNotNamed verifies that kubectl apply preserves fields absent from the
// manifest, such as taints set by other managers or a cordon. The status stays unchanged, and the
// result has a note about that.
func TestAnAppliedNodeKeepsWhatIsNotNamed(t *testing.T) {
	const node = `
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {disk: ssd}}
`
	w := opened(t, twoNodes)
	do(t, w, simulate.Operation{Cordon: &simulate.Nodes{Node: "node-1"}})
	do(t, w, simulate.Operation{Taint: &simulate.Tainting{Nodes: simulate.Nodes{Node: "node-1"}, Taints: []string{"a=b:NoSchedule"}}})
	if done := apply(t, w, node); len(done.Notes) != 0 {
		t.Errorf("notes: %v", done.Notes)
	}
	n := w.Node("node-1")
	if !n.Spec.Unschedulable || len(n.Spec.Taints) != 2 || n.Labels["disk"] != "ssd" || n.Labels[v1.LabelHostname] != "node-1" {
		t.Errorf("%+v", n)
	}
	done := apply(t, w, node+"status: {allocatable: {cpu: \"64\", memory: 8Gi, pods: \"110\"}}\n")
	if len(done.Notes) != 1 || !strings.Contains(done.Notes[0], "does not change its status") {
		t.Errorf("notes: %v", done.Notes)
	}
	if cpu := w.Node("node-1").Status.Allocatable[v1.ResourceCPU]; cpu.String() != "8" {
		t.Errorf("CPU: %s", cpu.String())
	}
}

// TestDaemonsOfNewAndUntaintedNodes verifies that DaemonSet pods tolerate node problems, however
// they are created, and start on a node once its taints permit.
func TestDaemonsOfNewAndUntaintedNodes(t *testing.T) {
	const daemons = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: i}]}}}
`
	w := opened(t, strings.Replace(twoNodes, "status:", "spec: {taints: [{key: gpu, effect: NoSchedule}]}\nstatus:", 1)+daemons)
	cordoned := simulate.Nodes{Node: "node-2"}
	do(t, w, simulate.Operation{Cordon: &cordoned})
	apply(t, w, strings.ReplaceAll(daemons, "agent", "more"))
	do(t, w, simulate.Operation{AddNodes: &simulate.AddNodes{Count: 1, Like: "node-2"}})
	apply(t, w, "apiVersion: v1\nkind: Node\nmetadata: {name: node-3}\nstatus: {allocatable: {cpu: \"8\", memory: 8Gi, pods: \"110\"}}\n")
	do(t, w, simulate.Operation{Untaint: &simulate.Tainting{Nodes: simulate.Nodes{Node: "node-1"}, Taints: []string{"gpu"}}})
	do(t, w, simulate.Operation{Untaint: &simulate.Tainting{Nodes: simulate.Nodes{Node: "node-1"}, Taints: []string{"gpu"}}})
	on := map[string]int{}
	for _, f := range w.Each() {
		on[f.Object.Spec.NodeName]++
		if f.Pod.NodeName == "" {
			t.Errorf("%s is pending: %s", f.Object.Name, f.Message)
		}
		for _, o := range f.Object.Spec.Tolerations {
			if o.Key == v1.TaintNodeUnreachable && o.TolerationSeconds != nil {
				t.Errorf("%s leaves a node that is unreachable", f.Object.Name)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{"node-1": 2, "node-2": 2, "node-2-copy-1": 2, "node-3": 2}, on); diff != "" {
		t.Error(diff)
	}
}

const teamQuota = `---
apiVersion: v1
kind: ResourceQuota
metadata: {name: three}
spec: {hard: {pods: "3"}}
`

// TestQuotasFollowPods verifies that quota usage drops as pods leave, and that quotas applied later
// count the existing pods.
func TestQuotasFollowPods(t *testing.T) {
	w := opened(t, twoNodes+storedDeployment+teamQuota)
	pending := func() (list []string) {
		for _, f := range w.Each() {
			if f.Refused != "" {
				list = append(list, f.Refused)
			}
		}
		return list
	}
	apply(t, w, manifestOf("", "2"))
	if p := pending(); len(p) != 0 {
		t.Errorf("rolled out: %v", p)
	}
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 1}})
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 3}})
	if p := pending(); len(p) != 0 {
		t.Errorf("scaled down and up: %v", p)
	}
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 4}})
	if p := pending(); len(p) != 1 {
		t.Errorf("one too many: %v", p)
	}
	w = opened(t, twoNodes+storedDeployment)
	apply(t, w, teamQuota)
	do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 4}})
	if p := pending(); len(p) != 1 {
		t.Errorf("the quota was applied later: %v", p)
	}
}

// TestQuotaOfCrossNamespacePodAffinity verifies that a quota with the CrossNamespacePodAffinity
// scope counts only pods with such affinity.
func TestQuotaOfCrossNamespacePodAffinity(t *testing.T) {
	const quota = `
apiVersion: v1
kind: ResourceQuota
metadata: {name: none}
spec: {hard: {pods: "0"}, scopeSelector: {matchExpressions: [{scopeName: CrossNamespacePodAffinity, operator: Exists}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i}], affinity: {podAntiAffinity: {SPEC}}}
`
	for spec, refused := range map[string]bool{
		"requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: k, labelSelector: {}, namespaces: [other]}]":                                  true,
		"preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: k, labelSelector: {}, namespaceSelector: {}}}]": true,
		"requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: k, labelSelector: {}}]":                                                       false,
	} {
		s := run(t, twoNodes+strings.Replace(quota, "SPEC", spec, 1), simulate.Options{})
		if got := strings.Contains(s.Pods[0].Message, "exceeded quota: none"); got != refused {
			t.Errorf("%s: %q", spec, s.Pods[0].Message)
		}
	}
}

// TestBudgetsFollowReplicas verifies that maxUnavailable refers to the desired number of pods:
// after scaling, the budget uses the new number.
func TestBudgetsFollowReplicas(t *testing.T) {
	const budget = `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
`
	w := opened(t, twoNodes+storedDeployment+budget)
	for _, replicas := range []int{3, 7, 2} {
		do(t, w, simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: replicas}})
		b, _ := w.Cluster().Budgets.Get("default", "web")
		if s := b.Status; int(s.ExpectedPods) != replicas || int(s.DesiredHealthy) != replicas-1 || s.DisruptionsAllowed != 1 {
			t.Errorf("%d replicas: %+v", replicas, s)
		}
	}
}

// TestTerminatingPodsAreLeftToEnd verifies that deleting a terminating pod has no effect, except
// for a note.
func TestTerminatingPodsAreLeftToEnd(t *testing.T) {
	due := `, deletionTimestamp: "2026-01-01T00:00:30Z", deletionGracePeriodSeconds: 30, creationTimestamp: "2026-01-01T00:00:00Z"`
	w := opened(t, twoNodes+strings.Replace(gappy, "ORDINALS", "", 1)+db(0, due))
	done := do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/db-0"}})
	if f, ok := w.Find("default", "db-0"); !ok || f.Object.DeletionTimestamp == nil || len(done.Notes) != 1 {
		t.Errorf("%v; there: %t", done.Notes, ok)
	}
}

// TestADeploymentWithoutReplicaSetsIsNotScaled verifies that a Deployment cannot be scaled if its
// ReplicaSets are missing, for example because listing them is forbidden.
func TestADeploymentWithoutReplicaSetsIsNotScaled(t *testing.T) {
	deployment, _, _ := strings.Cut(storedDeployment, "---")
	w, err := simulate.Open(read(t, twoNodes+deployment), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Do(&simulate.Operation{Scale: &simulate.Scale{Workload: "deployment/web", Replicas: 2}}); err == nil || !strings.Contains(err.Error(), "no ReplicaSet") {
		t.Errorf("%v", err)
	}
}

// TestStaticPodsStay verifies that a static pod keeps running when its mirror pod is deleted or
// evicted.
func TestStaticPodsStay(t *testing.T) {
	w := opened(t, twoNodes+`---
apiVersion: v1
kind: Pod
metadata: {name: static, uid: u, resourceVersion: "1", annotations: {kubernetes.io/config.mirror: x}}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
`)
	for _, op := range []simulate.Operation{
		{Delete: &simulate.Delete{Object: "pod/static"}}, {Evict: &simulate.Evict{Pods: []string{"static"}}},
	} {
		done := do(t, w, op)
		if len(w.Departures()) > 0 || len(done.Notes) != 1 || !strings.Contains(done.Notes[0], "keeps running") {
			t.Errorf("%d pods left: %v", len(w.Departures()), done.Notes)
		}
	}
}
