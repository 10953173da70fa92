// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

func (c *cluster) deploymentRuns() {
	c.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: nginx}]
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]
`)
	c.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
	zones := map[string]int{}
	for node := range strings.FieldsSeq(c.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}")) {
		zones[c.get("node/"+node, `{.metadata.labels.topology\.kubernetes\.io/zone}`)]++
	}
	if fmt.Sprint(zones) != "map[z1:2 z2:2 z3:2]" {
		c.Errorf("pods by zone: %v", zones)
	}
}

// threeTaints verifies the example in Kubernetes' documentation: a pod that tolerates two of three
// taints is not placed on the node, but is not evicted from it.
func (c *cluster) threeTaints() {
	tolerations := "tolerations: [{key: key1, operator: Equal, value: value1, effect: NoSchedule}, {key: key1, operator: Equal, value: value1, effect: NoExecute}]"
	c.apply(pod("before", "", on("node-1"), tolerations) + pod("plain", "", on("node-1")))
	c.runs("before", "plain")
	c.tainted("node-1", "key1=value1:NoSchedule", "key1=value1:NoExecute", "key2=value2:NoSchedule")
	c.gone("pod/plain")
	c.apply(pod("after", "", on("node-1"), tolerations))
	c.waits("after", "1 node(s) had untolerated taint(s)")
	c.stays("before")
	c.kubectl("taint", "nodes", "node-1", "key2=value2:NoSchedule-")
	c.runs("after")
	c.stays("before")
}

func (c *cluster) noExecute() {
	tolerates := func(more string) string {
		return "tolerations: [{key: maintenance, operator: Exists, effect: NoExecute" + more + "}]"
	}
	c.apply(pod("now", "", on("node-2")) + pod("soon", "", on("node-2"), tolerates(", tolerationSeconds: 4")) +
		pod("later", "", on("node-2"), tolerates(", tolerationSeconds: 3600")) + pod("never", "", on("node-2"), tolerates("")))
	c.runs("now", "soon", "later", "never")
	for _, name := range []string{"now", "soon"} { // keep the evicted pods, so that their status can be read
		c.kubectl("patch", "pod", name, "--type=merge", `-p={"metadata": {"finalizers": ["example.com/keep"]}}`)
	}
	began := time.Now()
	c.tainted("node-2", "maintenance=now:NoExecute")
	c.awaits("pod/now", mayGo, "DeletionByTaintManager")
	c.awaits("pod/soon", mayGo, "DeletionByTaintManager")
	// kubectl sets no timeAdded, so tolerationSeconds count from the first observation of the
	// taint.
	if after := time.Since(began); after < 4*time.Second || after > 12*time.Second {
		c.Errorf("who tolerates 4 s leaves after %v", after)
	}
	c.event("now", "TaintManagerEviction", "Marking for deletion Pod "+c.namespace+"/now")
	for _, name := range []string{"now", "soon"} {
		c.eventually(func() error {
			if c.get("pod/"+name, leaving) == "" {
				return fmt.Errorf("%s is marked, and not deleted", name)
			}
			return nil
		})
		c.kubectl("patch", "pod", name, "--type=merge", `-p={"metadata": {"finalizers": null}}`)
		c.gone("pod/" + name)
	}
	c.kubectl("taint", "nodes", "node-2", "maintenance-")
	c.event("later", "TaintManagerEviction", "Cancelling deletion of Pod "+c.namespace+"/later")
	c.stays("later")
	c.stays("never")
}

// countdownSurvives verifies that tolerationSeconds do not start again when the controller is
// killed. The next controller must read the taint's time from timeAdded, if the webhook has set it,
// or from the first controller's annotation, which was written when the list of taints changed
// again.
func (c *cluster) countdownSurvives() {
	const seconds = 20
	next := c.beginController("controller-2")
	c.apply(pod("counted", "", on("node-3"), fmt.Sprintf("tolerations: [{key: leave, operator: Exists, effect: NoExecute, tolerationSeconds: %d}]", seconds)))
	c.runs("counted")
	began := time.Now()
	c.tainted("node-3", "leave=soon:NoExecute")
	url := c.parts.controller.says(`health and metrics on (http://\S+)`)
	c.eventually(func() error {
		if !strings.Contains(c.read(url+"/metrics", ""), `berth_eviction_pending{taint="leave`) {
			return errors.New("it is not counted down")
		}
		return nil
	})
	c.eventually(func() error { // times are in whole seconds: within the same second the controller writes no annotation
		if time.Since(began) < 1500*time.Millisecond {
			return errors.New("it is too early")
		}
		return nil
	})
	c.tainted("node-3", "another=one:NoSchedule")
	const timeAdded, noted = `{.spec.taints[?(@.key=="leave")].timeAdded}`, `{.metadata.annotations.berth\.dev/taints-since}`
	kept := ""
	c.eventually(func() error {
		if kept = c.get("node/node-3", timeAdded+noted); kept == "" {
			return errors.New("since when it is tainted is not kept")
		}
		return nil
	})
	c.parts.controller.kill()
	c.parts.controller = next
	c.gone("pod/counted")
	if after := time.Since(began); after < (seconds-1)*time.Second || after > (seconds+5)*time.Second {
		c.Errorf("who tolerates %d s leaves after %v", seconds, after)
	} else {
		c.note(fmt.Sprintf("%d s tolerated, gone after %.1f s; what is kept: %s", seconds, after.Seconds(), kept))
	}
}

func (c *cluster) silentNode() {
	const node = "node-3"
	c.apply(pod("leaves", "", on(node), "tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}]") +
		pod("guards", "", on(node), "tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists}, {key: node.kubernetes.io/not-ready, operator: Exists}]") +
		pod("patient", "", on(node)))
	c.runs("leaves", "guards", "patient")
	if got := c.get("pod/patient", `{.spec.tolerations[*].tolerationSeconds}`); got != "300 300" {
		c.Errorf("a plain pod stays %q seconds on a node that is lost", got)
	}
	c.berthSays("nodes", "fail", "--node", node)
	c.awaits("node/"+node, `{.status.conditions[?(@.type=="Ready")].status}`, "Unknown")
	c.awaitTaints(node, "node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule")
	c.awaits("pod/guards", `{.status.conditions[?(@.type=="Ready")].status}`, "False")
	c.awaits("pod/leaves", mayGo, "DeletionByTaintManager") // the pod remains terminating, because its node does not respond
	c.stays("guards")
	c.stays("patient")
	c.berthSays("nodes", "recover", "--node", node)
	c.awaits("node/"+node, `{.status.conditions[?(@.type=="Ready")].status}`, "True")
	c.awaitTaints(node)
	c.gone("pod/leaves")
	c.awaits("pod/guards", `{.status.conditions[?(@.type=="Ready")].status}`, "True")
	c.event("patient", "TaintManagerEviction", "Cancelling deletion of Pod "+c.namespace+"/patient")
}

func (c *cluster) conditionsBecomeTaints() {
	const node = "node-4"
	c.kubectl("cordon", node)
	c.awaitTaints(node, "node.kubernetes.io/unschedulable:NoSchedule")
	c.kubectl("uncordon", node)
	c.awaitTaints(node)
	for condition, taint := range map[string]string{
		"MemoryPressure": "memory-pressure:NoSchedule", "DiskPressure": "disk-pressure:NoSchedule", "PIDPressure": "pid-pressure:NoSchedule",
		"NetworkUnavailable": "network-unavailable:NoSchedule",
	} {
		c.berthSays("nodes", "condition", node, condition+"=True")
		c.awaitTaints(node, "node.kubernetes.io/"+taint)
		c.berthSays("nodes", "condition", node, condition+"-")
		c.awaitTaints(node)
	}
}

// awaitTaints waits until a node has exactly these taints.
func (c *cluster) awaitTaints(node string, want ...string) {
	c.Helper()
	c.eventually(func() error {
		got := strings.Fields(c.get("node/"+node, "{range .spec.taints[*]}{.key}:{.effect} {end}"))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s has the taints %v, want %v", node, got, want)
		}
		return nil
	})
}
