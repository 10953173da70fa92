// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

var advised = flag.Int("advised", 1, "in how many random clusters each suggestion is carried out")

// TestAdviceHelpsInRandomClusters verifies that each suggestion for a pending pod in random
// clusters helps. It runs the suggested commands as printed, and makes changes without a command
// itself. The cluster is created again for each suggestion.
func TestAdviceHelpsInRandomClusters(t *testing.T) {
	nightly.Only(t)
	sh(t, applied(randomClasses))
	t.Cleanup(func() { sh(t, "kubectl delete --ignore-not-found -f - <<'END'\n"+randomClasses+"END") })
	seen := map[string]int{}
	const first = 9 // a seed with a quick cluster and several difficulties
	for i := range uint64(*advised) {
		of := first + *seed + i
		for n, all := 0, 1; n < all; n++ {
			name := fmt.Sprintf("drawn-%d-%d", of, n)
			t.Run(name, func(t *testing.T) { all = (&drawn{seed: of, in: &advice{name: name}}).follow(t, n, seen) })
		}
	}
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%4d %s", seen[what], what)
	}
}

// randomClasses contains the cluster-scoped objects of all random clusters.
const randomClasses = `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata}
handler: kata
scheduling: {nodeSelector: {disk: nvme}, tolerations: [{key: team, operator: Equal, value: a}]}
overhead: {podFixed: {cpu: "1"}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: drawn-high}
value: 1000
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: drawn-gpu}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: drawn-dead}
provisioner: csi.example.com
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: drawn-dead-now}
provisioner: csi.example.com
volumeBindingMode: Immediate
`

// drawn is a random state of the nodes and of a namespace, with one workload that may be pending.
type drawn struct {
	seed uint64
	r    *rand.Rand
	in   *advice
	// rules contains objects that restrict pods created later in the namespace. workload contains
	// the workload, and others contains all other objects.
	rules, others, workload string
	after                   string // commands to run after the creation of the workload
}

func (d *drawn) chance(percent int) bool { return d.r.IntN(100) < percent }

func (d *drawn) any(list ...string) string { return list[d.r.IntN(len(list))] }

// follow follows the suggestion with the given index, and returns the total number of suggestions.
func (d *drawn) follow(t *testing.T, number int, seen map[string]int) (of int) {
	d.r = rand.New(rand.NewPCG(d.seed, 67))
	name := d.in.name
	createNamespace(t, name)
	t.Cleanup(func() {
		sh(t, "kubectl delete namespace "+name+" --wait=false; kubectl delete pods --all --force -n "+name+
			"; kubectl delete resourceslice,pv -l drawn="+name+" --wait=false")
		sh(t, "kubectl patch pvc held -n "+name+` --type=merge -p '{"metadata":{"finalizers":null}}' 2>/dev/null || true`)
		d.changeNodes(t, func(n *v1.Node) { n.Spec.Taints, n.Spec.Unschedulable = nil, false; delete(n.Labels, "disk") })
	})
	d.changeNodes(t, d.drawNode)
	d.drawOthers()
	d.drawWorkload()
	d.in.sh(t, applied(d.others))
	d.in.sh(t, "kubectl wait --for=jsonpath='{.status.phase}'=Running pods --all --timeout=30s || true")
	if d.rules != "" {
		d.in.sh(t, applied(d.rules))
	}
	if strings.Contains(d.others, "name: held") {
		d.in.sh(t, "kubectl delete pvc held --wait=false")
	}
	if out, err := exec.Command("sh", "-c", strings.ReplaceAll(applied(d.workload), "kubectl ", filepath.Join(bin, "berth")+" kubectl -n "+name+" ")).CombinedOutput(); err != nil {
		seen["refused: "+regexp.MustCompile(`"[^"]*"|\d\S*`).ReplaceAllString(strings.TrimSpace(string(out)), "...")]++
		return 0
	}
	var waits *v1.Pod
	for end := time.Now().Add(3 * time.Second); waits == nil && time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		if waits = d.in.waiting(t); waits == nil && d.gated(t) != nil {
			waits = d.gated(t)
		}
	}
	if waits == nil {
		seen["no pod is pending"]++
		return 0
	}
	d.in.sh(t, d.after)

	e := &explain.Explanation{}
	if err := json.Unmarshal([]byte(must(t, "", "explain", "pod/"+waits.Name, "-n", name, "-o", "json")), e); err != nil {
		t.Fatal(err)
	}
	if number == 0 {
		seen[fmt.Sprintf("%s, %t: advised", e.State, len(e.Suggestions) > 0)]++
		for _, w := range e.Withheld {
			seen["withheld: "+regexp.MustCompile(`"[^"]*"|\d\S*`).ReplaceAllString(w.Reason, "...")]++
		}
		if len(e.Suggestions) == 0 {
			t.Logf("no advice: %s\n%s%s%s", e.Summary, d.rules, d.workload, d.after)
		}
	}
	if number >= len(e.Suggestions) {
		return 0
	}
	before := d.in.running(t)
	s := &e.Suggestions[number]
	t.Logf("%s\n    %s", s.Text, s.Command())
	if !d.carryOut(t, s) {
		seen["cannot be carried out here"]++
		return len(e.Suggestions)
	}
	seen["carried out"]++
	for _, c := range s.Changes {
		seen["  "+c.Kind]++
	}
	end := time.Now().Add(20 * time.Second)
	for d.in.running(t) <= before && time.Now().Before(end) {
		<-time.After(50 * time.Millisecond)
	}
	if d.in.running(t) <= before {
		t.Errorf("%q does not help:\n%s%s%s%s\n%s", s.Text, d.others, d.rules, d.workload, d.after, must(t, "", "explain", "-n", name, "-l", "run=counts"))
	}
	return len(e.Suggestions)
}

// gated returns a pod with scheduling gates, or nil.
func (d *drawn) gated(t *testing.T) *v1.Pod {
	for _, p := range d.in.pods(t) {
		if p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) > 0 {
			return &p
		}
	}
	return nil
}

func (d *drawn) changeNodes(t *testing.T, alter func(n *v1.Node)) {
	t.Helper()
	for i := range 6 {
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			n, err := client.CoreV1().Nodes().Get(context.Background(), fmt.Sprintf("node-%d", i+1), metav1.GetOptions{})
			if err != nil {
				return err
			}
			alter(n)
			_, err = client.CoreV1().Nodes().Update(context.Background(), n, metav1.UpdateOptions{})
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

func (d *drawn) drawNode(n *v1.Node) {
	n.Spec.Taints, n.Spec.Unschedulable = nil, false
	r := rand.New(rand.NewPCG(d.seed, uint64(n.Name[len(n.Name)-1]))) // the same result in a retried update
	n.Labels["disk"] = []string{"ssd", "hdd"}[r.IntN(2)]
	if r.IntN(10) < 4 {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "team", Value: []string{"a", "b"}[r.IntN(2)], Effect: v1.TaintEffectNoSchedule})
	}
	n.Spec.Unschedulable = r.IntN(6) == 0
}

// drawOthers draws running pods, the namespace's rules, claims and devices.
func (d *drawn) drawOthers() {
	for i := range 6 {
		for j, free := 0, 32; j < d.r.IntN(4); j++ {
			cpu := []int{8, 12, 20}[d.r.IntN(3)]
			if free -= cpu; free < 0 {
				break
			}
			spec := fmt.Sprintf(`nodeName: node-%d, tolerations: [{operator: Exists}], containers: [{name: c, image: i, resources: {requests: {cpu: "%d"}, limits: {cpu: "%d"}}`, i+1, cpu, cpu)
			if j == 0 && d.chance(30) {
				spec += `, ports: [{containerPort: 80, hostPort: 80}]`
			}
			spec += "}]"
			if d.chance(15) {
				spec += `, affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {run: counts}}}]}}`
			}
			d.others += other(fmt.Sprintf("there-%d-%d", i, j), "app: "+d.any("web", "db"), spec)
		}
	}
	held := strings.Replace(claim("held", ""), "name: held", "name: held, finalizers: [example.com/keep]", 1)
	d.others += held + claim("free", "") + strings.Replace(claim("dead", ""), "''", "drawn-dead", 1) + strings.Replace(claim("dead-now", ""), "''", "drawn-dead-now", 1)
	d.others += `apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: ` + d.in.name + `, labels: {drawn: ` + d.in.name + `}}
spec: {driver: gpu.example.com, nodeName: node-4, pool: {name: node-4, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: drawn-gpu}}]}}}
---
`
	if d.chance(50) {
		d.others += other("holder", "app: holder", withDevice+", tolerations: [{operator: Exists}]")
	}
	if d.chance(40) {
		d.rules += "apiVersion: v1\nkind: LimitRange\nmetadata: {name: limits}\nspec: {limits: [{type: Container, " + d.any(`min: {cpu: "4"}`, `min: {cpu: "16"}`,
			`maxLimitRequestRatio: {cpu: "1"}`, `default: {cpu: "16"}`, `max: {cpu: "40"}, defaultRequest: {cpu: "24"}`) + "}]}\n---\n"
	}
	if d.chance(30) {
		d.rules += "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: quota}\nspec: {hard: {" + d.any(`requests.cpu: "200"`, `requests.cpu: "120"`, `pods: "12"`) + "}" +
			d.any("", ", scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [drawn-high]}]}") + "}\n---\n"
	}
}

// drawWorkload draws a workload whose pods are likely to be pending.
func (d *drawn) drawWorkload() {
	cpu := d.any("4", "12", "24", "40")
	resources := d.any(`requests: {cpu: "CPU"}`, `requests: {cpu: "CPU"}, limits: {cpu: "CPU"}`)
	one := `name: c, image: nginx, resources: {` + strings.ReplaceAll(resources, "CPU", cpu)
	if d.chance(12) {
		one += ", claims: [{name: d}]}"
	} else {
		one += "}"
	}
	if d.chance(15) {
		one += ", ports: [{containerPort: 80, hostPort: 80}]"
	}
	spec := "containers: [{" + one + "}]"
	if strings.Contains(one, "claims:") {
		spec += ", resourceClaims: [{name: d, resourceClaimTemplateName: one}]"
	}
	if d.chance(15) {
		spec += `, initContainers: [{name: init, image: i, ` + d.any("", "restartPolicy: Always, ") + `resources: {requests: {cpu: "40"}}}]`
	}
	if d.chance(40) {
		spec += ", tolerations: [{key: team, operator: Equal, value: a}]"
	}
	kata := d.chance(12)
	switch {
	case kata:
		spec += ", runtimeClassName: kata"
	case d.chance(25):
		spec += ", nodeSelector: {disk: " + d.any("ssd", "ssd", "nvme") + "}"
	}
	if d.chance(12) {
		spec += ", schedulingGates: [{name: example.com/gate}]"
	}
	if d.chance(10) {
		spec += ", os: {name: windows}" + d.any("", ", nodeName: ''")
		if !strings.Contains(spec, "nodeSelector") && d.chance(50) {
			spec += ", nodeSelector: {kubernetes.io/os: windows}"
		}
	}
	if d.chance(10) {
		spec += ", priorityClassName: drawn-high"
	}
	if d.chance(25) {
		spec += ", volumes: [{name: v, persistentVolumeClaim: {claimName: " + d.any("held", "free", "dead", "dead-now", "absent") + "}}]"
	}
	if d.chance(15) {
		spec += ", topologySpreadConstraints: [{maxSkew: 1, topologyKey: " + d.any("kubernetes.io/hostname", "topology.kubernetes.io/zone") +
			", whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]"
	}
	switch d.r.IntN(12) {
	case 0:
		spec += `, affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: ` + d.any("kubernetes.io/hostname", "topology.kubernetes.io/zone") + `, labelSelector: {matchLabels: {app: db}}}]}}`
	case 1:
		spec += `, affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app: cache}}}]}}`
	case 2:
		spec += `, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [tape]}]}]}}}`
	}
	switch d.r.IntN(9) {
	case 0, 1:
		d.workload = podOf("p", spec)
	case 2:
		d.workload = workload("apps/v1", "Deployment", "replicas: 2, ", spec)
	case 3:
		d.workload, d.after = workload("apps/v1", "Deployment", "", spec), "kubectl rollout pause deployment/w"
	case 4:
		d.workload = workload("apps/v1", "StatefulSet", "serviceName: w, replicas: 2, ", spec)
	case 5:
		d.workload = workload("apps/v1", "StatefulSet", "serviceName: w, replicas: 2, updateStrategy: {rollingUpdate: {partition: 2}}, "+d.any("", "podManagementPolicy: Parallel, "), spec)
	case 6:
		d.workload = workload("apps/v1", d.any("StatefulSet", "DaemonSet"), "updateStrategy: {type: OnDelete}, ", spec)
		if strings.Contains(d.workload, "StatefulSet") {
			d.workload = strings.Replace(d.workload, "updateStrategy", "serviceName: w, updateStrategy", 1)
		}
	case 7:
		d.workload = job(spec)
	default:
		d.workload = workload("apps/v1", "ReplicaSet", "", spec)
	}
}

// carryOut makes the changes of a suggestion: first the changes with commands, then the other
// changes. It returns false if a change is impossible in this cluster.
func (d *drawn) carryOut(t *testing.T, s *explain.Suggestion) bool {
	t.Helper()
	var byHand []func()
	for i := range s.Changes {
		c := &s.Changes[i]
		_, object, _ := strings.Cut(c.Object, "/")
		name := object[strings.LastIndex(object, "/")+1:]
		switch c.Kind {
		case "AddNode":
			if strings.Contains(string(c.Patch), v1.LabelOSStable) {
				return false // there are no simulated Windows nodes
			}
			byHand = append(byHand, func() { d.addNode(t, c, object) })
		case "RunPod":
			found := regexp.MustCompile(`labelled (\S+) in namespace`).FindStringSubmatch(c.Text)
			if found == nil {
				t.Fatalf("%s: no label", c.Text)
			}
			byHand = append(byHand, func() {
				d.in.sh(t, fmt.Sprintf(`kubectl run companion --image=nginx --labels=%s --overrides='{"spec":{"nodeName":"%s","tolerations":[{"operator":"Exists"}]}}'`, found[1], s.Node))
			})
		case "CreateClaim", "BindClaim":
			volume := strings.Replace(volume(d.in.name, fmt.Sprintf(", claimRef: {namespace: %s, name: %s}", d.in.name, name)), "}\nspec", ", labels: {drawn: "+d.in.name+"}}\nspec", 1)
			for _, class := range []string{"dead-now", "dead"} {
				if name == class {
					volume = strings.Replace(volume, "''", "drawn-"+class, 1)
				}
			}
			byHand = append(byHand, func() {
				if name == "held" { // the advice requires the deletion to complete first
					d.in.sh(t, `kubectl patch pvc held --type=merge -p '{"metadata":{"finalizers":null}}'`)
				}
				if d.in.sh(t, applied(volume)); c.Kind == "CreateClaim" {
					d.in.sh(t, applied(claim(name, ", volumeName: "+d.in.name)))
				}
			})
		default:
			if c.Command == "" && !strings.HasPrefix(c.Object, "pod/") {
				return false
			}
		}
	}
	if command := s.Command(); command != "" {
		sh(t, command)
	} else if len(byHand) == 0 {
		return false
	}
	for _, do := range byHand {
		do()
	}
	return true
}

// addNode adds a simulated node that resembles another node, with the patch of the change.
func (d *drawn) addNode(t *testing.T, c *explain.Change, like string) {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), like, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var patch v1.Node
	if c.Patch != nil {
		if err := json.Unmarshal(c.Patch, &patch); err != nil {
			t.Fatal(err)
		}
	}
	maps.Copy(n.Labels, patch.Labels)
	flags := "--name-prefix more-" + d.in.name + "-"
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		if key != v1.LabelHostname {
			flags += " --label " + key + "=" + n.Labels[key]
		}
	}
	for _, taint := range n.Spec.Taints {
		if taint.Key != v1.TaintNodeUnschedulable {
			flags += fmt.Sprintf(" --taint %s=%s:%s", taint.Key, taint.Value, taint.Effect)
		}
	}
	simulated(t, flags)
}
