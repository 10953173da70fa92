// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestAPodBoundByHandRuns(t *testing.T) {
	apply(t, pod("by-hand", "node-2"))
	awaits(t, patience, "pod/by-hand", `{.status.phase} {.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[0].started}`, "Running True true")
	if ip := get(t, "pod/by-hand", "{.status.podIP}"); !strings.HasPrefix(ip, "10.128.2.") {
		t.Errorf("address %s, want one of node-2's range", ip)
	}
	kubectl(t, "get", "pod", "by-hand", "-o", "wide")
	kubectl(t, "describe", "pod", "by-hand")
	kubectl(t, "delete", "pod", "by-hand")
}

func TestReadinessProbesArePlayed(t *testing.T) {
	apply(t, pod("probe-false", "node-1", "container readinessProbe: {exec: {command: ['false']}}"))
	apply(t, pod("probe-true", "node-1", "container readinessProbe: {exec: {command: ['true']}, initialDelaySeconds: 1}"))
	const ready = `{.status.phase} {.status.conditions[?(@.type=="Ready")].status}`
	awaits(t, patience, "pod/probe-true", ready, "Running True")
	awaits(t, patience, "pod/probe-false", ready, "Running False")
	kubectl(t, "annotate", "pod", "probe-false", "berth.dev/ready=true")
	awaits(t, patience, "pod/probe-false", ready, "Running True")
	kubectl(t, "delete", "pod", "probe-true", "probe-false")
}

func TestWhatANodeCannotTakeIsRejectedAsAKubeletDoes(t *testing.T) {
	simulate(t, "small-", "--count", "1", "--cpu", "2", "--memory", "1Gi", "--pods", "3", "--resource", "example.com/card=1")
	apply(t, pod("fits", "small-1", "container resources: {requests: {cpu: 1500m}}, ports: [{containerPort: 80, hostPort: 80}]"))
	awaits(t, patience, "pod/fits", "{.status.phase}", "Running")
	for reason, more := range map[string][]string{
		"OutOfcpu":              {"container resources: {requests: {cpu: 1}}"},
		"OutOfmemory":           {"container resources: {requests: {memory: 2Gi}}"},
		"OutOfexample.com/card": {"container resources: {requests: {example.com/card: 2}, limits: {example.com/card: 2}}"},
		"NodeAffinity":          {"spec nodeSelector: {disk: ssd}"},
		"NodePorts":             {"container ports: [{containerPort: 80, hostPort: 80}]"},
	} {
		name := "rejected-" + strings.ToLower(strings.NewReplacer(".", "-", "/", "-").Replace(reason))
		apply(t, pod(name, "small-1", more...))
		awaits(t, patience, "pod/"+name, "{.status.phase} {.status.reason}", "Failed "+reason)
		if got := get(t, "pod/"+name, "{.status.message}"); !strings.HasPrefix(got, "Pod was rejected: ") {
			t.Errorf("%s: message %q", name, got)
		}
	}
	// Rejected pods occupy no pod slot: two more pods fit within the limit of three.
	for i := range 3 {
		apply(t, pod(fmt.Sprintf("tiny-%d", i), "small-1"))
		awaits(t, patience, fmt.Sprintf("pod/tiny-%d", i), "{.status.phase}", map[bool]string{true: "Running", false: "Failed"}[i < 2])
	}
	awaits(t, patience, "pod/tiny-2", "{.status.reason}", "OutOfpods")
	kubectl(t, "delete", "pods", "-l", "app in (fits, rejected, tiny)", "--grace-period=0", "--force")
}

func TestJobsCompleteAndFail(t *testing.T) {
	const job = `apiVersion: batch/v1
kind: Job
metadata: {name: %s}
spec:
  backoffLimit: 0
  template:
    metadata: {annotations: {%s}}
    spec: {nodeName: node-1, restartPolicy: Never, containers: [{name: c, image: busybox}]}
`
	apply(t, fmt.Sprintf(job, "quick", ""))
	apply(t, fmt.Sprintf(job, "broken", `berth.dev/run-for: 1s, berth.dev/exit-code: "2"`))
	kubectl(t, "wait", "job/quick", "--for=condition=Complete", "--timeout=20s")
	kubectl(t, "wait", "job/broken", "--for=condition=Failed", "--timeout=20s")
	kubectl(t, "delete", "job", "quick", "broken")
}

func TestDeletionTakesAsLongAsItShould(t *testing.T) {
	const atMost = 25 * time.Second // less than the default grace period
	for _, c := range []struct {
		name  string
		more  []string
		flags []string
		min   time.Duration
	}{
		{"ends-at-once", nil, nil, 0},
		{"takes-two", []string{`annotation berth.dev/terminate-after: 2s`}, nil, 2 * time.Second},
		{"is-killed", []string{`annotation berth.dev/terminate-after: 1h`, "spec terminationGracePeriodSeconds: 3"}, nil, 3 * time.Second},
		{"is-forced", []string{`annotation berth.dev/terminate-after: 1h`}, []string{"--grace-period=0", "--force"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			apply(t, pod(c.name, "node-3", c.more...))
			awaits(t, patience, "pod/"+c.name, "{.status.phase}", "Running")
			began := time.Now()
			kubectl(t, append([]string{"delete", "pod", c.name}, c.flags...)...)
			if took := time.Since(began); took < c.min || took > atMost {
				t.Errorf("took %s, want %s to %s", took, c.min, atMost)
			}
		})
	}
}

// TestDrainWaitsForTheBudget verifies that kubectl drain uses the Eviction API and waits for the
// budget.
func TestDrainWaitsForTheBudget(t *testing.T) {
	simulate(t, "drained-", "--count", "3")
	apply(t, `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: drained}
spec: {minAvailable: 2, selector: {matchLabels: {app: drained}}}
`)
	t.Cleanup(func() { kubectl(t, "delete", "pdb", "drained") })
	apply(t, pod("drained-a", "drained-1"))
	apply(t, pod("drained-b", "drained-2"))
	awaits(t, patience, "pdb/drained", "{.status.currentHealthy} {.status.disruptionsAllowed}", "2 0")
	drain := []string{"kubectl", "drain", "drained-1", "--force", "--ignore-daemonsets"}
	berth(t, append(drain, "--timeout=2s")...).wants(t, 1, "violate the pod's disruption budget")
	kubectl(t, "get", "pod", "drained-a")
	apply(t, pod("drained-c", "drained-3"))
	awaits(t, patience, "pdb/drained", "{.status.disruptionsAllowed}", "1")
	berth(t, append(drain, "--timeout=30s")...).wants(t, 0, "evicted")
	awaitGone(t, patience, "pod/drained-a")
	awaits(t, patience, "node/drained-1", "{.spec.unschedulable}", "true")
	kubectl(t, "delete", "pods", "-l", "app=drained")
}

// TestWorkloadsAndPoliciesAreAccepted verifies that objects of all kinds read by the scheduler can
// be created with stock kubectl, and that the controllers create their pods. It ignores the
// placement of pods.
func TestWorkloadsAndPoliciesAreAccepted(t *testing.T) {
	// Without a node health controller, the taint set at admission stays on new nodes, and the
	// DaemonSet would have no pods.
	berth(t, "kubectl", "taint", "nodes", "-l", "berth.dev/simulated", "node.kubernetes.io/not-ready:NoSchedule-")
	apply(t, string(read(t, "testdata/workloads.yaml")))
	t.Cleanup(func() { kubectl(t, "delete", "-f", "testdata/workloads.yaml", "--wait=false") })
	awaitPods := func(app string, want int) {
		eventually(t, patience, func() error {
			if got := strings.Fields(kubectl(t, "get", "pods", "-l", "app="+app, "-o", "name")); len(got) < want {
				return fmt.Errorf("app %s has the pods %v, want %d", app, got, want)
			}
			return nil
		})
	}
	awaitPods("e2e-deployment", 2)
	awaitPods("e2e-statefulset", 1)
	awaitPods("e2e-daemonset", 3)
	awaitPods("e2e-job", 1)
	// The pod's usage includes the overhead added by its RuntimeClass.
	awaits(t, patience, "resourcequota/e2e", "{.status.hard.requests\\.cpu}", "100")
	apply(t, pod("heavy", "node-1", "spec runtimeClassName: e2e-kata", "spec priorityClassName: e2e-high",
		"container resources: {requests: {cpu: 500m, memory: 64Mi}}"))
	awaits(t, patience, "pod/heavy", "{.spec.overhead.cpu} {.spec.priority} {.status.phase}", "250m 1000 Running")
	r := berth(t, "kubectl", "describe", "node", "node-1")
	r.wants(t, 0, "750m")
	kubectl(t, "delete", "pod", "heavy")
}
