// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/provision"
)

// offers is a template of the nodes to buy. toRun contains the workloads for them: pods spread over
// zones, pods on separate nodes, and small pods. Their pods select bought nodes only.
const (
	offers = `apiVersion: v1
kind: Node
metadata:
  name: bought-%[1]s-%[2]s
  labels: {node.kubernetes.io/instance-type: %[1]s, topology.kubernetes.io/zone: %[2]s, bought: "yes"}
  annotations: {berth.dev/price: "%[5]s"}
status: {allocatable: {cpu: "%[3]s", memory: %[4]s, pods: "110"}}
---
`
	toRun = `apiVersion: apps/v1
kind: Deployment
metadata: {name: bought-web}
spec:
  replicas: 12
  selector: {matchLabels: {app: bought-web}}
  template:
    metadata: {labels: {app: bought-web}}
    spec:
      nodeSelector: {bought: "yes"}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: bought-web}}}
      containers: [{name: c, image: i, resources: {requests: {cpu: 1500m, memory: 2Gi}}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: bought-db}
spec:
  replicas: 3
  podManagementPolicy: Parallel
  serviceName: db
  selector: {matchLabels: {app: bought-db}}
  template:
    metadata: {labels: {app: bought-db}}
    spec:
      nodeSelector: {bought: "yes"}
      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: bought-db}}}]}}
      containers: [{name: c, image: i, resources: {requests: {cpu: "2", memory: 6Gi}}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: bought-small}
spec:
  replicas: 25
  selector: {matchLabels: {app: bought-small}}
  template:
    metadata: {labels: {app: bought-small}}
    spec:
      nodeSelector: {bought: "yes"}
      containers: [{name: c, image: i, resources: {requests: {cpu: 250m, memory: 256Mi}}}]
`
	everyPod = 12 + 3 + 25
)

// TestPodsRunOnWhatWasBought verifies that the nodes in a plan of `berth what-if` suffice: all pods
// run on simulated nodes of the planned types and zones. The plan is for a scheduler that places
// pods by its scores (--scored), with one order of arrivals and of random choices. Since the live
// order differs, a few pods may remain without room. In that case a second plan, for the current
// cluster, must suffice.
func TestPodsRunOnWhatWasBought(t *testing.T) {
	dir := t.TempDir()
	catalog, work := filepath.Join(dir, "catalog.yaml"), filepath.Join(dir, "work.yaml")
	var text strings.Builder
	for _, zone := range []string{"bz1", "bz2"} {
		fmt.Fprintf(&text, offers, "small", zone, "4", "16Gi", "0.20")
		fmt.Fprintf(&text, offers, "large", zone, "16", "64Gi", "0.76")
	}
	for file, content := range map[string]string{catalog: text.String(), work: toRun} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	plan := planned(t, "apply", "-f", work, "provision", "--catalog", catalog, "--scored")
	if plan.Pods != everyPod || len(plan.Pending) > 0 || plan.Scored == nil || len(plan.Scored.Left) > 0 {
		t.Fatalf("%d of %d pods get a node in the plan: %+v", plan.Pods, everyPod, plan)
	}
	bought := buy(t, "bought", append(plan.Nodes, plan.Scored.Nodes...))
	t.Cleanup(func() { kubectl(t, "delete", "--cascade=foreground", "-f", work) })
	kubectl(t, "apply", "-f", work)

	var left []string
	eventually(t, time.Minute, func() error {
		err := allRunOr(t, "Unschedulable", bought)
		if left = unschedulable(t); err == nil && len(left) > 2 {
			err = fmt.Errorf("%d pods have no room on what was bought: %q", len(left), left)
		}
		return err
	})
	if len(left) > 0 {
		t.Logf("the scheduler placed otherwise than foreseen, and left %q", left)
		more := planned(t, "provision", "--catalog", catalog, "--scored")
		if len(more.Pending) > 0 || more.Scored == nil || len(more.Scored.Left) > 0 {
			t.Fatalf("what to buy for %q is not known: %+v", left, more)
		}
		bought = append(bought, buy(t, "again", append(more.Nodes, more.Scored.Nodes...))...)
		eventually(t, time.Minute, func() error { return allRunOr(t, "", bought) })
	}
}

// planned runs `berth what-if` and returns the plan in its result.
func planned(t *testing.T, args ...string) *provision.Plan {
	t.Helper()
	r := berth(t, slices.Concat([]string{"what-if"}, args, []string{"-o", "json"})...)
	r.wants(t, 0)
	var said struct {
		Provision *provision.Plan `json:"provision"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &said); err != nil || said.Provision == nil {
		t.Fatalf("no plan: %v\n%s", err, r.stdout)
	}
	return said.Provision
}

// buy starts simulated nodes as in a plan, and returns their names.
func buy(t *testing.T, when string, nodes []provision.Node) (names []string) {
	t.Helper()
	count := map[[2]string]int{}
	for _, n := range nodes {
		count[[2]string{n.Type, n.Zone}]++
	}
	size := map[string][2]string{"small": {"4", "16Gi"}, "large": {"16", "64Gi"}}
	for of, n := range count {
		prefix := fmt.Sprintf("%s-%s-%s-", when, of[0], of[1])
		simulate(t, prefix, "--count", fmt.Sprint(n), "--cpu", size[of[0]][0], "--memory", size[of[0]][1], "--label", "bought=yes",
			"--label", "node.kubernetes.io/instance-type="+of[0], "--label", "topology.kubernetes.io/zone="+of[1])
		for i := range n {
			names = append(names, fmt.Sprint(prefix, i+1))
		}
	}
	return names
}

// allRunOr returns an error unless each pod runs on one of the nodes or, if a reason is given, is
// pending for that reason.
func allRunOr(t *testing.T, reason string, nodes []string) error {
	t.Helper()
	settled := 0
	var elsewhere error
	for _, pod := range boughtPods(t) {
		if pod.phase == "Running" && !slices.Contains(nodes, pod.node) {
			elsewhere = errors.Join(elsewhere, fmt.Errorf("%s runs on %s", pod.name, pod.node))
		}
		if pod.phase == "Running" || reason != "" && pod.reason == reason {
			settled++
		}
	}
	if settled != everyPod {
		return fmt.Errorf("%d of %d pods run: %+v", settled, everyPod, boughtPods(t))
	}
	return elsewhere
}

// unschedulable returns the names of the unschedulable pods.
func unschedulable(t *testing.T) (names []string) {
	t.Helper()
	for _, pod := range boughtPods(t) {
		if pod.reason == "Unschedulable" {
			names = append(names, pod.name)
		}
	}
	return names
}

// boughtPod is a pod of the test with its node, or with the reason why it is pending.
type boughtPod struct{ name, phase, node, reason string }

func boughtPods(t *testing.T) (pods []boughtPod) {
	t.Helper()
	for line := range strings.Lines(kubectl(t, "get", "pods", "-l", "app in (bought-web,bought-db,bought-small)", "-o",
		`jsonpath={range .items[*]}{.metadata.name}|{.status.phase}|{.spec.nodeName}|{.status.conditions[?(@.type=="PodScheduled")].reason}{"\n"}{end}`)) {
		parts := strings.Split(strings.TrimSpace(line), "|")
		pods = append(pods, boughtPod{parts[0], parts[1], parts[2], parts[3]})
	}
	return pods
}
