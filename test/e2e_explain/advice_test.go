// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/survey"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// advice is one suggestion of berth explain, with the state of the cluster that causes it. Each has
// a separate namespace. The pods that must run have the label run=counts.
type advice struct {
	name string
	// kind contains the kinds of the suggested changes, joined by +.
	kind string
	// before contains commands, and objects contains manifests, that leave a pod pending.
	before, objects string
	// nodes contains flags for simulated nodes to add first.
	nodes string
	// words is the text of advice without a command, and by is a command that follows the advice.
	// NODE in by stands for the node in the advice.
	words, by string
	// added contains flags for simulated nodes as suggested by the advice.
	added string
	// then is the expected number of running pods at the end; 0 means 1.
	then  int
	after string
}

const (
	container = `containers: [{name: c, image: nginx}]`
	greedy    = `containers: [{name: c, image: nginx, resources: {requests: {cpu: "200"}}}]`
	wide      = `containers: [{name: c, image: nginx, resources: {requests: {cpu: "20"}}}]`
	onNode4   = `nodeSelector: {kubernetes.io/hostname: node-4}`
	claimed   = container + `, volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]`
)

func podOf(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {run: counts}}\nspec: {" + spec + "}\n---\n"
}

// other returns the manifest of another pod, which need not run.
func other(name, labels, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {" + labels + "}}\nspec: {" + spec + "}\n---\n"
}

// workload returns the manifest of a workload with the given pod spec.
func workload(api, kind, more, spec string) string {
	return "apiVersion: " + api + "\nkind: " + kind + "\nmetadata: {name: w}\nspec: {" + more +
		"selector: {matchLabels: {run: counts}}, template: {metadata: {labels: {run: counts}}, spec: {" + spec + "}}}\n---\n"
}

const replication = `apiVersion: v1
kind: ReplicationController
metadata: {name: w}
spec: {replicas: 1, selector: {run: counts}, template: {metadata: {labels: {run: counts}}, spec: {` + greedy + `}}}
`

func job(spec string) string {
	return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: w}\nspec: {template: {metadata: {labels: {run: counts}}, spec: {restartPolicy: Never, " + spec + "}}}\n"
}

const cronJob = `apiVersion: batch/v1
kind: CronJob
metadata: {name: w}
spec: {schedule: "0 0 1 1 *", jobTemplate: {spec: {template: {metadata: {labels: {run: counts}}, spec: {restartPolicy: Never, ` + greedy + `}}}}}
`

// jobOfCron is a command that creates a Job of a CronJob, as the CronJob controller does.
const jobOfCron = `kubectl create job w-1 --from=cronjob/w --dry-run=client -o json |
kubectl patch --local -f - --type json -p '[{"op":"replace","path":"/metadata/ownerReferences/0/controller","value":true}]' -o json | kubectl apply -f -`

func spread(more string) string {
	return `topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {run: counts}}` + more + `}], ` + container
}

func volume(name, more string) string {
	return "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: " + name + "}\nspec: {storageClassName: '', capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], nfs: {server: s, path: /}" + more + "}\n---\n"
}

func claim(name, more string) string {
	return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name + "}\nspec: {storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}" + more + "}\n---\n"
}

func applied(manifests string) string { return "kubectl apply -f - <<'END'\n" + manifests + "END" }

func class(name, more string) string {
	return "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: " + name + "}\n" + more + "\n---\n"
}

// devices contains one device on node-4, and two pods that request one device each.
const devices = `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: advice-node-4}
spec: {driver: gpu.example.com, nodeName: node-4, pool: {name: node-4, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}}
---
`

const withDevice = `resourceClaims: [{name: d, resourceClaimTemplateName: one}], containers: [{name: c, image: nginx, resources: {claims: [{name: d}]}}]`

var everyAdvice = []advice{
	{name: "taint", kind: "RemoveTaint", before: "kubectl taint nodes " + allNodes + " team=a:NoSchedule", objects: podOf("p", container), after: "kubectl taint nodes " + allNodes + " team- || true"},
	{name: "tolerate", kind: "Tolerate", before: "kubectl taint nodes " + allNodes + " team=a:NoSchedule", objects: podOf("p", container), after: "kubectl taint nodes " + allNodes + " team-"},
	{name: "tolerate-template", kind: "Tolerate", before: "kubectl taint nodes " + allNodes + " team=a:NoSchedule", objects: workload("apps/v1", "Deployment", "", container), after: "kubectl taint nodes " + allNodes + " team-"},
	{name: "cordon", kind: "Uncordon", before: "kubectl cordon " + allNodes, objects: podOf("p", container), after: "kubectl uncordon " + allNodes},
	{
		name: "recover", kind: "RecoverNode", objects: podOf("p", container+", "+onNode4), before: "berth nodes condition node-4 MemoryPressure=True; kubectl wait --for=jsonpath='{.spec.taints[0].key}'=node.kubernetes.io/memory-pressure node/node-4",
		words: "node-4 recovers, so that it is no longer tainted node.kubernetes.io/memory-pressure", by: "berth nodes condition node-4 MemoryPressure-", after: "berth nodes condition node-4 MemoryPressure-",
	},

	{name: "lower", kind: "LowerRequest", objects: podOf("p", greedy)},
	{name: "lower-deployment", kind: "LowerRequest", objects: workload("apps/v1", "Deployment", "replicas: 2, ", greedy), then: 2},
	{name: "lower-replicaset", kind: "LowerRequest", objects: workload("apps/v1", "ReplicaSet", "", greedy)},
	{name: "lower-rc", kind: "LowerRequest", objects: replication},
	{name: "lower-statefulset", kind: "LowerRequest", objects: workload("apps/v1", "StatefulSet", "serviceName: w, replicas: 2, ", greedy), then: 2},
	{name: "lower-daemonset", kind: "LowerRequest", objects: workload("apps/v1", "DaemonSet", "", greedy), then: 6},
	{name: "lower-ondelete", kind: "LowerRequest", objects: workload("apps/v1", "DaemonSet", "updateStrategy: {type: OnDelete}, ", greedy+", "+onNode4)},
	{name: "lower-job", kind: "LowerRequest", objects: job(greedy)},
	{name: "lower-cronjob", kind: "LowerRequest", objects: cronJob, before: jobOfCron},

	{name: "port", kind: "FreePort", objects: other("first", "app: first", hostPort+", nodeName: node-4") + podOf("p", hostPort+", "+onNode4)},
	{name: "port-drop", kind: "DropHostPort", objects: other("first", "app: first", hostPort+", nodeName: node-4") + podOf("p", hostPort+", "+onNode4)},
	{name: "selector", kind: "RelaxNodeAffinity", objects: podOf("p", "nodeSelector: {disk: ssd}, "+container)},
	{
		name: "affinity", kind: "RelaxNodeAffinity",
		objects: workload("apps/v1", "Deployment", "", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}]}}}, "+container),
	},
	{name: "selector-node", kind: "AddNode", objects: podOf("p", "nodeSelector: {disk: ssd}, "+container), words: "with the label disk=ssd", added: "--name-prefix ssd- --label disk=ssd"},
	{name: "node", kind: "AddNode", objects: workload("apps/v1", "Deployment", "replicas: 7, ", apart), words: "add one more node like node-", added: "--name-prefix more-", then: 7},

	{name: "skew", kind: "RaiseMaxSkew", before: oneZone, objects: podOf("p", spread("")), then: 2, after: allZones},
	{name: "soften-spread", kind: "SoftenSpread", before: oneZone, objects: workload("apps/v1", "Deployment", "", spread("")), then: 2, after: allZones},
	{
		name: "honor", kind: "HonorTaints", objects: podOf("p", spread("")), then: 2,
		before: "kubectl taint nodes node-2 node-3 node-5 node-6 team=a:NoSchedule; " + firstOfSpread, after: "kubectl taint nodes node-2 node-3 node-5 node-6 team-",
	},
	{name: "revision", kind: "CountRevision", before: oneZone, objects: workload("apps/v1", "Deployment", "", spread("")), then: 2, after: allZones},

	{name: "follow", kind: "SoftenPodAffinity", objects: podOf("p", "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: nobody}}}]}}, "+container)},
	{
		name: "companion", kind: "RunPod", objects: podOf("p", "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: nobody}}}]}}, "+container),
		words: "run a pod labelled app=nobody in namespace companion", by: `kubectl run nobody --image=nginx --labels=app=nobody --overrides='{"spec":{"nodeName":"NODE"}}'`,
	},
	{name: "anti", kind: "SoftenPodAntiAffinity", objects: other("db", "app: db", container+", nodeName: node-4") + podOf("p", awayFromDB)},
	{name: "anti-delete", kind: "DeletePod", objects: other("db", "app: db", container+", nodeName: node-4") + podOf("p", awayFromDB)},
	{name: "room", kind: "DeletePod", objects: other("first", "app: first", wide+", nodeName: node-4") + podOf("p", wide+", "+onNode4)},

	{name: "claim", kind: "CreateClaim", objects: podOf("p", claimed), words: "create the claim data, bound to a volume that every node can reach", by: applied(volume("advice-claim", "") + claim("data", ", volumeName: advice-claim"))},
	{name: "bind", kind: "BindClaim", objects: claim("data", "") + podOf("p", claimed), words: "bind the claim data: a volume of 1Gi that the nodes can reach is missing", by: applied(volume("advice-bind", ""))},
	{name: "volume", kind: "CreateVolume", objects: claim("data", ", volumeName: advice-volume") + podOf("p", claimed), words: "create the volume advice-volume", by: applied(volume("advice-volume", ""))},
	{
		name: "far", kind: "MoveVolume", before: "kubectl cordon node-4",
		objects: volume("advice-far", `, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [nowhere]}]}]}}`) + claim("data", ", volumeName: advice-far") + podOf("p", claimed),
		words:   "move the data of the claim data to a volume that more nodes can reach than advice-far",
		by:      "kubectl delete pvc data; " + applied(volume("advice-near", "")+claim("data", ", volumeName: advice-near")), after: "kubectl uncordon node-4",
	},
	{
		name: "taken", kind: "DeleteClaim", before: applied(claim("p-v", "")+volume("advice-taken", "")) + "\nkubectl wait --for=jsonpath='{.status.phase}'=Bound pvc/p-v",
		objects: volume("advice-taken-2", "") + podOf("p", container+`, volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]`),
	},
	{
		name: "alone", kind: "DeletePod",
		objects: strings.ReplaceAll(volume("advice-alone", "")+claim("data", ", volumeName: advice-alone"), "[ReadWriteOnce]", "[ReadWriteOncePod]") + other("first", "app: first", claimed),
		before:  "kubectl wait --for=jsonpath='{.status.phase}'=Running pod/first; " + applied(podOf("p", claimed)),
	},
	{name: "device", kind: "FreeDevice", objects: devices + other("first", "app: first", withDevice), before: "kubectl wait --for=jsonpath='{.status.phase}'=Running pod/first; " + applied(podOf("p", withDevice)), after: "kubectl delete resourceslice advice-node-4; kubectl delete deviceclass gpu"},

	{name: "raise", kind: "RaisePriority", objects: class("advice-high", "value: 1000") + other("low", "app: low", wide+", nodeName: node-4") + podOf("p", wide+", "+onNode4), after: "kubectl delete priorityclass advice-high"},
	{
		name: "raise-template", kind: "RaisePriority",
		objects: class("advice-high", "value: 1000") + other("low", "app: low", wide+", nodeName: node-4") + workload("apps/v1", "Deployment", "", wide+", "+onNode4), after: "kubectl delete priorityclass advice-high",
	},
	{
		name: "allow", kind: "AllowPreemption", after: "kubectl delete priorityclass advice-patient advice-patient-preempting",
		objects: class("advice-patient", "value: 1000\npreemptionPolicy: Never") + other("low", "app: low", wide+", nodeName: node-4") + podOf("p", "priorityClassName: advice-patient, "+wide+", "+onNode4),
	},
	{name: "gate", kind: "RemoveGate", objects: podOf("p", "schedulingGates: [{name: example.com/wait}], "+container)},
	{name: "gate-template", kind: "RemoveGate", objects: workload("apps/v1", "Deployment", "", "schedulingGates: [{name: example.com/wait}], "+container)},
	{name: "both", kind: "RelaxNodeAffinity+LowerRequest", objects: workload("apps/v1", "Deployment", "", "nodeSelector: {disk: ssd}, "+greedy)},
	{name: "both-places", kind: "Uncordon+LowerRequest", before: "kubectl cordon " + allNodes, objects: podOf("p", greedy), after: "kubectl uncordon " + allNodes},
	{name: "leaving", nodes: "--name-prefix slow- --terminate-after 8s", objects: class("advice-lead", "value: 1000") + other("low", "app: low", wide+", "+onSlow), before: "kubectl wait --for=jsonpath='{.status.phase}'=Running pod/low; " + applied(podOf("p", "priorityClassName: advice-lead, "+wide+", "+onSlow)), after: "kubectl delete priorityclass advice-lead"},
}

const (
	hostPort      = `containers: [{name: c, image: nginx, ports: [{containerPort: 80, hostPort: 80}]}]`
	onSlow        = `nodeSelector: {kubernetes.io/hostname: slow-1}`
	apart         = `affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {run: counts}}}]}}, ` + container
	awayFromDB    = `affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: db}}}]}}, ` + onNode4 + `, ` + container
	firstOfSpread = `kubectl run first --image=nginx --labels=run=counts --overrides='{"spec":{"nodeName":"node-1"}}'`
	oneZone       = "kubectl cordon node-2 node-3 node-5 node-6; " + firstOfSpread
	allZones      = "kubectl uncordon node-2 node-3 node-5 node-6"
)

// TestEveryAdviceHelps verifies that the pod runs after each kind of advice by berth explain is
// followed exactly as printed, and that berth pending prints the same first advice. In short mode,
// it follows every fourth.
func TestEveryAdviceHelps(t *testing.T) {
	t.Cleanup(func() {
		sh(t, "kubectl delete priorityclass advice-never --ignore-not-found; kubectl delete pv --all --wait=false")
	})
	for i := range everyAdvice {
		a := &everyAdvice[i]
		t.Run(a.name, func(t *testing.T) {
			if i%4 != 0 {
				nightly.Only(t)
			}
			a.follow(t)
		})
	}
}

func (a *advice) follow(t *testing.T) {
	createNamespace(t, a.name)
	t.Cleanup(func() {
		sh(t, "kubectl delete namespace "+a.name+" --wait=false; kubectl delete pods --all --force -n "+a.name)
	})
	t.Cleanup(func() { a.sh(t, a.after) })
	if a.nodes != "" {
		simulated(t, a.nodes)
	}
	if strings.Contains(a.before, "pod/") || a.before == jobOfCron { // the commands refer to the objects
		a.sh(t, applied(a.objects))
		a.sh(t, a.before)
	} else {
		a.sh(t, a.before)
		a.sh(t, applied(a.objects))
	}
	var waits *v1.Pod
	within(t, 20*time.Second, "a pod waits", func() bool {
		waits = a.waiting(t)
		return waits != nil
	})

	e := &explain.Explanation{}
	if err := json.Unmarshal([]byte(must(t, "", "explain", "pod/"+waits.Name, "-n", a.name, "-o", "json")), e); err != nil {
		t.Fatal(err)
	}
	a.pendingAgrees(t, e)
	a.do(t, e)
	within(t, 30*time.Second, "the pods run", func() bool { return a.running(t) == max(a.then, 1) && a.waiting(t) == nil })
}

// createNamespace creates a namespace, and waits until pods can be created in it.
func createNamespace(t *testing.T, name string) {
	t.Helper()
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, 20*time.Second, "a service account", func() bool {
		_, err := client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
}

// do follows the advice. If victims are already terminating, the advice must be to do nothing.
func (a *advice) do(t *testing.T, e *explain.Explanation) {
	t.Helper()
	if a.kind == "" {
		if e.Leaving == nil || len(e.Suggestions) > 0 || !strings.Contains(e.Summary, "Nothing needs to be done.") {
			t.Fatalf("something is to be done: %s, %+v", e.Summary, e.Suggestions)
		}
		return
	}
	for i := range e.Suggestions {
		s := &e.Suggestions[i]
		var kinds []string
		for j := range s.Changes {
			kinds = append(kinds, s.Changes[j].Kind)
		}
		command := s.Command()
		switch {
		case strings.Join(kinds, "+") != a.kind || a.words != "" && !strings.Contains(s.Text, a.words):
			continue
		case (command == "") != (a.words != ""):
			t.Fatalf("%s: the command is %q", s.Text, command)
		}
		t.Logf("%s\n    %s", s.Text, command)
		if a.added != "" {
			simulated(t, a.added)
		}
		sh(t, command)
		a.sh(t, strings.ReplaceAll(a.by, "NODE", s.Node))
		return
	}
	t.Fatalf("no %s is suggested: %s", a.kind, must(t, "", "explain", "pod/"+e.Pod.Name, "-n", a.name))
}

// pendingAgrees verifies that berth pending prints the same first advice as berth explain.
func (a *advice) pendingAgrees(t *testing.T, e *explain.Explanation) {
	t.Helper()
	p := &survey.Pending{}
	if err := json.Unmarshal([]byte(must(t, "", "pending", "-n", a.name, "-o", "json")), p); err != nil {
		t.Fatal(err)
	}
	for i := range p.Workloads {
		w := &p.Workloads[i]
		switch {
		case len(e.Suggestions) == 0 && w.Help == "":
			return
		case len(e.Suggestions) > 0 && w.Help == e.Suggestions[0].Text && (w.Command == "") == (e.Suggestions[0].Command() == ""):
			return
		}
	}
	t.Errorf("pending says %+v, and explain %s", p.Workloads, e.Summary)
}

// sh runs a command line with kubectl in the namespace of the advice.
func (a *advice) sh(t *testing.T, line string) {
	t.Helper()
	if line != "" {
		sh(t, strings.ReplaceAll(line, "kubectl ", "kubectl -n "+a.name+" "))
	}
}

// waiting returns the first pod that the scheduler has reported as unschedulable, or nil.
func (a *advice) waiting(t *testing.T) *v1.Pod {
	t.Helper()
	for _, p := range a.pods(t) {
		for _, c := range p.Status.Conditions {
			if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
				return &p
			}
		}
	}
	return nil
}

func (a *advice) running(t *testing.T) (count int) {
	t.Helper()
	for _, p := range a.pods(t) {
		if p.DeletionTimestamp == nil && (p.Status.Phase == v1.PodRunning || p.Status.Phase == v1.PodSucceeded) {
			count++
		}
	}
	return count
}

func (a *advice) pods(t *testing.T) []v1.Pod {
	t.Helper()
	list, err := client.CoreV1().Pods(a.name).List(t.Context(), metav1.ListOptions{LabelSelector: "run=counts"})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// simulated adds a simulated node, which exists until the test ends.
func simulated(t *testing.T, flags string) {
	t.Helper()
	args := append([]string{"nodes", "--count", "1", "--zones", "1", "--kubeconfig", filepath.Join(data, "kubeconfig")}, strings.Fields(flags)...)
	cmd := exec.Command(filepath.Join(bin, "berth"), args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		sh(t, "kubectl delete node "+args[8]+"1")
	})
}
