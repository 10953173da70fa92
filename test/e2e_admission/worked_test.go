// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eadmission

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestWorkedCases verifies the examples of Kubernetes' documentation with stock kubectl, on a
// cluster with Berth's rules compiled in, Berth's scheduler and three nodes.
func TestWorkedCases(t *testing.T) {
	t.Parallel()
	c := start(t)
	c.RunBerth(3)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster, kubectl)
	}{
		{"OverheadIsWrittenAndCounted", overheadIsWrittenAndCounted},
		{"QuotaCountsOverhead", quotaCountsOverhead},
		{"UnknownClassesAreRefused", unknownClassesAreRefused},
		{"PodsStayOnLostNodesForAWhile", podsStayOnLostNodesForAWhile},
		{"DaemonsAreNotGivenSeconds", daemonsAreNotGivenSeconds},
		{"SpecialHardwareIsForThoseWhoAskForIt", specialHardware},
		{"NamespaceHasItsOwnNodes", namespaceHasItsOwnNodes},
		{"PrioritiesOfUsersAndOfTheSystem", priorities},
		{"UpdatesKeepAndAdd", updatesKeepAndAdd},
		{"TaintsKnowSinceWhen", taintsKnowSinceWhen},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c, c.kubectl(t)) })
	}
}

const kataFC = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata-fc}
handler: kata-fc
overhead: {podFixed: {memory: 120Mi, cpu: 250m}}
`

// testPod returns a manifest of the pod in the documentation, with more in its spec.
func testPod(more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: test-pod}
spec:
  runtimeClassName: kata-fc
  %s
  containers:
  - {name: busybox-ctr, image: busybox:1.28, stdin: true, tty: true, resources: {limits: {cpu: 500m, memory: 100Mi}}}
  - {name: nginx-ctr, image: nginx, resources: {limits: {cpu: 1500m, memory: 100Mi}}}
`, more)
}

func overheadIsWrittenAndCounted(t *testing.T, _ *cluster, k kubectl) {
	k.apply(kataFC)
	k.apply(testPod(""))
	k.is(`{"cpu":"250m","memory":"120Mi"}`, "pod/test-pod", "{.spec.overhead}")
	k.becomes("True", "pod/test-pod", `{.status.conditions[?(@.type=="PodScheduled")].status}`)
	node := k.run("get", "pod/test-pod", "-o", "jsonpath={.spec.nodeName}")
	// Requests and limits of the two containers and the overhead: 2.25 CPU, 320 MiB.
	if line := regexp.MustCompile(`(?m)^.* test-pod +2250m \(\d+%\) +2250m \(\d+%\) +320Mi \(\d+%\) +320Mi`); !line.MatchString(k.run("describe", "node", node)) {
		t.Errorf("kubectl describe node %s has no such line:\n%s", node, k.run("describe", "node", node))
	}
	k.run("delete", "pod/test-pod", "--force", "--grace-period=0")
	k.refused("Error from server (Forbidden)", testPod("overhead: {cpu: 1m}"))
	k.refused(`pods "test-pod" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead`, testPod("overhead: {cpu: 1m}"))
}

func quotaCountsOverhead(t *testing.T, c *cluster, k kubectl) {
	for _, quota := range []string{"2", "3"} {
		c.makeNamespace(t, &v1.Namespace{ObjectMeta: named("quota-" + quota)})
		k.run("create", "quota", "compute", "--hard=cpu="+quota+",memory=1Gi", "-n", "quota-"+quota)
		k.becomes(quota, "quota/compute", "{.status.hard.cpu}", "-n", "quota-"+quota)
	}
	k.refused(`pods "test-pod" is forbidden: exceeded quota: compute, requested: cpu=2250m, used: cpu=0, limited: cpu=2`,
		testPod(""), "apply", "-f", "-", "-n", "quota-2")
	k.apply(testPod(""), "-n", "quota-3")
	k.becomes(`2250m 320Mi`, "quota/compute", "{.status.used.cpu} {.status.used.memory}", "-n", "quota-3")
}

func unknownClassesAreRefused(_ *testing.T, _ *cluster, k kubectl) {
	k.refused(`pods "x" is forbidden: pod rejected: RuntimeClass "absent" not found`, pod("x", "runtimeClassName: absent"))
	k.refused(`pods "x" is forbidden: no PriorityClass with name absent was found`, pod("x", "priorityClassName: absent"))
}

// pod returns a manifest of a pod with additional fields in its spec.
func pod(name, more string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: c, image: nginx}], %s}}", name, more)
}

const secondsOf = `{range .spec.tolerations[*]}{.key}={.tolerationSeconds} {end}`

func podsStayOnLostNodesForAWhile(_ *testing.T, _ *cluster, k kubectl) {
	k.apply(pod("plain", ""))
	k.is("node.kubernetes.io/not-ready=300 node.kubernetes.io/unreachable=300", "pod/plain", secondsOf)
	k.apply(pod("hopes", "tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 6000}]"))
	k.is("node.kubernetes.io/unreachable=6000 node.kubernetes.io/not-ready=300", "pod/hopes", secondsOf)
	k.apply(pod("compares", "tolerations: [{key: sla, operator: Gt, value: '950', effect: NoSchedule}]"))
	k.is("Gt", "pod/compares", "{.spec.tolerations[0].operator}")
}

func daemonsAreNotGivenSeconds(t *testing.T, _ *cluster, k kubectl) {
	k.apply(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: daemon}, spec: {selector: {matchLabels: {app: daemon}},
  template: {metadata: {labels: {app: daemon}}, spec: {hostNetwork: true, containers: [{name: c, image: nginx}]}}}}`)
	k.becomes("3", "daemonset/daemon", "{.status.desiredNumberScheduled}")
	var out string
	eventually(t, func(ctx context.Context) (err error) {
		out, err = k.try(ctx, "", "get", "pods", "-l", "app=daemon", "-o", `jsonpath={range .items[0].spec.tolerations[*]}{.key}:{.effect}:{.tolerationSeconds} {end}`)
		return err
	})
	for _, want := range []string{"not-ready:NoExecute: ", "unreachable:NoExecute: ", "disk-pressure:NoSchedule: ", "memory-pressure:NoSchedule: ",
		"pid-pressure:NoSchedule: ", "unschedulable:NoSchedule: ", "network-unavailable:NoSchedule: "} {
		if strings.Count(out, "node.kubernetes.io/"+want) != 1 {
			t.Errorf("not once %s in %s", want, out)
		}
	}
	if strings.Contains(out, "300") {
		t.Errorf("a daemon would be evicted: %s", out)
	}
	k.run("delete", "daemonset/daemon")
}

func specialHardware(t *testing.T, _ *cluster, k kubectl) {
	k.run("patch", "node", "node-3", "--subresource=status", "--type=merge", "-p", `{"status":{"capacity":{"nvidia.com/gpu":"2"},"allocatable":{"nvidia.com/gpu":"2"}}}`)
	k.run("taint", "nodes", "node-3", "nvidia.com/gpu=true:NoSchedule")
	k.apply(`{apiVersion: v1, kind: Pod, metadata: {name: trains}, spec: {containers: [{name: c, image: nginx, resources: {limits: {nvidia.com/gpu: 1}}}]}}`)
	k.becomes("node-3", "pod/trains", "{.spec.nodeName}")
	k.is("Exists NoSchedule", "pod/trains", `{.spec.tolerations[?(@.key=="nvidia.com/gpu")].operator} {.spec.tolerations[?(@.key=="nvidia.com/gpu")].effect}`)
	k.run("create", "deployment", "elsewhere", "--image=nginx", "--replicas=6")
	k.becomes("6", "deployment/elsewhere", "{.status.readyReplicas}")
	if nodes := k.run("get", "pods", "-l", "app=elsewhere", "-o", "jsonpath={.items[*].spec.nodeName}"); strings.Contains(nodes, "node-3") {
		t.Errorf("pods that need no special hardware run on %s", nodes)
	}
	k.run("delete", "deployment/elsewhere", "pod/trains")
	k.run("taint", "nodes", "node-3", "nvidia.com/gpu-")
}

func namespaceHasItsOwnNodes(t *testing.T, c *cluster, k kubectl) {
	k.run("taint", "nodes", "node-2", "dedicated=groupName:NoSchedule")
	k.run("label", "nodes", "node-2", "dedicated=groupName")
	c.makeNamespace(t, &v1.Namespace{ObjectMeta: named("group")})
	k.run("annotate", "namespace", "group", "berth.dev/dedicated-nodes=dedicated=groupName")
	eventually(t, func(ctx context.Context) error { // the annotation may not have reached the caches yet
		out, err := k.try(ctx, pod("probe", ""), "apply", "-n", "group", "--dry-run=server", "-o", "jsonpath={.spec.affinity}", "-f", "-")
		if err == nil && out == "" {
			err = fmt.Errorf("no affinity yet")
		}
		return err
	})
	k.run("create", "deployment", "ours", "--image=nginx", "--replicas=6", "-n", "group")
	k.run("create", "deployment", "others", "--image=nginx", "--replicas=6")
	k.becomes("6", "deployment/ours", "{.status.readyReplicas}", "-n", "group")
	k.becomes("6", "deployment/others", "{.status.readyReplicas}")
	if nodes := strings.Fields(k.run("get", "pods", "-n", "group", "-o", "jsonpath={.items[*].spec.nodeName}")); strings.Join(nodes, " ") != strings.TrimSpace(strings.Repeat("node-2 ", 6)) {
		t.Errorf("the group's pods run on %v", nodes)
	}
	if nodes := k.run("get", "pods", "-l", "app=others", "-o", "jsonpath={.items[*].spec.nodeName}"); strings.Contains(nodes, "node-2") {
		t.Errorf("others' pods run on %s", nodes)
	}
	k.run("delete", "deployment/others")
	k.run("taint", "nodes", "node-2", "dedicated-")
}

func priorities(t *testing.T, c *cluster, k kubectl) {
	class := func(name, more string) string {
		return fmt.Sprintf("{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: %s}, %s}", name, more)
	}
	k.apply(class("top", "value: 1000000000"))
	k.refused("maximum allowed value of a user defined priority is 1000000000", class("over", "value: 1000000001"))
	k.refused("priority class names with 'system-' prefix are reserved for system use only", class("system-mine", "value: 1"))
	k.is("2000000000", "priorityclass/system-cluster-critical", "{.value}")
	k.is("2000001000", "priorityclass/system-node-critical", "{.value}")
	k.apply(pod("top", "priorityClassName: top"))
	k.is("1000000000", "pod/top", "{.spec.priority}")
	k.refused("the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 1000000000 from the given PriorityClass name",
		pod("by-hand", "priorityClassName: top, priority: 5"))

	// A quota by priority class restricts critical priorities to some namespaces.
	k.apply(pod("critical", "priorityClassName: system-node-critical"), "-n", "kube-system")
	k.is("2000001000", "pod/critical", "{.spec.priority}", "-n", "kube-system")
	c.makeNamespace(t, &v1.Namespace{ObjectMeta: named("users")})
	k.apply(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: none-critical}, spec: {hard: {pods: 0},
  scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}]}}}`, "-n", "users")
	k.becomes("0", "quota/none-critical", "{.status.hard.pods}", "-n", "users")
	k.refused("exceeded quota: none-critical", pod("critical", "priorityClassName: system-node-critical"), "apply", "-n", "users", "-f", "-")
	k.apply(pod("usual", ""), "-n", "users")

	k.apply(class("usual", "value: 10, globalDefault: true"))
	k.refused("PriorityClass usual is already marked as default. Only one default can exist", class("second", "value: 20, globalDefault: true"))
	k.apply(class("usual", "value: 10, globalDefault: true, description: the default may be changed"))
	eventually(t, func(ctx context.Context) error {
		out, err := k.try(ctx, pod("defaulted", ""), "apply", "--dry-run=server", "-o", "jsonpath={.spec.priorityClassName}={.spec.priority}", "-f", "-")
		if err == nil && out != "usual=10" {
			err = fmt.Errorf("got %s", out)
		}
		return err
	})
	k.run("delete", "priorityclass/usual")
}

func updatesKeepAndAdd(t *testing.T, _ *cluster, k kubectl) {
	manifest := `{apiVersion: v1, kind: Pod, metadata: {name: updated, labels: {round: "%s"}}, spec: {priorityClassName: top,
  containers: [{name: c, image: nginx, resources: {requests: {cpu: 10m}}}]%s}}`
	k.apply(fmt.Sprintf(manifest, "1", ""))
	before := k.run("get", "pod/updated", "-o", "jsonpath={.spec.tolerations}{.spec.priority}{.spec.preemptionPolicy}")
	k.apply(fmt.Sprintf(manifest, "2", ""))
	k.is(before, "pod/updated", "{.spec.tolerations}{.spec.priority}{.spec.preemptionPolicy}")
	k.run("patch", "pod/updated", "--type=json", "-p", `[{"op":"add","path":"/spec/tolerations/-","value":{"key":"later","operator":"Exists"}}]`)
	k.is("later", "pod/updated", "{.spec.tolerations[-1:].key}")
	// Admission rules ignore requests for subresources.
	k.becomes("Running", "pod/updated", "{.status.phase}")
	k.run("patch", "pod/updated", "--subresource=resize", "-p", `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"20m"}}}]}}`)
	k.is("20m 1000000000", "pod/updated", "{.spec.containers[0].resources.requests.cpu} {.spec.priority}")
}

func taintsKnowSinceWhen(t *testing.T, c *cluster, k kubectl) {
	const time = `{.spec.taints[?(@.key=="%s")].timeAdded}`
	since := func(key string) string { return k.run("get", "node/node-1", "-o", "jsonpath="+fmt.Sprintf(time, key)) }
	k.run("taint", "nodes", "node-1", "a=1:NoSchedule", "never=1:PreferNoSchedule")
	if since("a") != "" {
		t.Error("a taint that evicts nobody has a time")
	}
	k.run("taint", "nodes", "node-1", "evicts=1:NoExecute")
	first := since("evicts")
	if first == "" {
		t.Fatal("a taint that evicts has no time")
	}
	// Other changes to the list of taints keep the time, and applying the taint without its time
	// changes nothing.
	k.run("taint", "nodes", "node-1", "a-", "never-")
	if now := since("evicts"); now != first {
		t.Errorf("time %s, was %s", now, first)
	}
	applied := `{apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {taints: [{key: evicts, value: "1", effect: NoExecute}]}}`
	k.apply(applied, "--server-side", "--force-conflicts")
	version := k.run("get", "node/node-1", "-o", "jsonpath={.spec.taints}")
	k.apply(applied, "--server-side")
	k.is(version, "node/node-1", "{.spec.taints}")
	if now := since("evicts"); now != first {
		t.Errorf("after server-side apply: time %s, was %s", now, first)
	}
	k.run("taint", "nodes", "node-1", "evicts-")
}
