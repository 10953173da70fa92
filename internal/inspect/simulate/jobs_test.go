// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// retrier is a Job that survives one failure; its only pod fits on no node.
const retrier = `
apiVersion: batch/v1
kind: Job
metadata: {name: job, uid: job}
spec:
  backoffLimit: 1
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: "100"}}}]}
`

// deletePodsOf deletes the pods with the name prefix, and advances the time by the maximum back-off
// of a Job.
func deletePodsOf(t *testing.T, w *simulate.World, prefix string) {
	t.Helper()
	for _, name := range names(w, prefix) {
		do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/" + name}})
	}
	w.Advance(w.Elapsed() + 10*time.Minute)
}

// TestADeletedPendingPodIsAFailureOfItsJob verifies that a deleted pending pod counts as a failure
// of its Job, like upstream: the Job's finalizer keeps the pod until it is counted, and the pod
// garbage collector marks it as failed.
func TestADeletedPendingPodIsAFailureOfItsJob(t *testing.T) {
	for name, spec := range map[string]string{
		"replaced at once":     "  podReplacementPolicy: TerminatingOrFailed\n",
		"replaced once failed": "  podReplacementPolicy: Failed\n",
		"disruptions ignored":  "  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := opened(t, twoNodes+strings.Replace(retrier, "  backoffLimit", spec+"  backoffLimit", 1))
			deletePodsOf(t, w, "job")
			if left := names(w, "job"); len(left) != 1 {
				t.Fatalf("after one failure: %q", left)
			}
			deletePodsOf(t, w, "job")
			if left := names(w, "job"); len(left) != 0 {
				t.Errorf("after a failure more than backoffLimit allows: %q", left)
			}
		})
	}
}

// TestADeletedPendingPodIsAFailureOfItsIndex verifies that a Job does not recreate the pod of a
// failed index, but creates a pod for the next index.
func TestADeletedPendingPodIsAFailureOfItsIndex(t *testing.T) {
	w := opened(t, twoNodes+strings.Replace(retrier, "  backoffLimit: 1", "  completionMode: Indexed\n  completions: 2\n  parallelism: 1\n  backoffLimitPerIndex: 0", 1))
	for _, want := range []string{"job-0", "job-1"} {
		if left := names(w, "job"); len(left) != 1 || !strings.HasPrefix(left[0], want) {
			t.Fatalf("%q, want %s", left, want)
		}
		deletePodsOf(t, w, "job")
	}
	if left := names(w, "job"); len(left) != 0 {
		t.Errorf("no index is left: %q", left)
	}
}

// TestAJobMadeAnewHasNoFailures verifies that a Job recreated under the name of a deleted Job has
// no failures.
func TestAJobMadeAnewHasNoFailures(t *testing.T) {
	w := opened(t, twoNodes+retrier)
	for range 2 {
		deletePodsOf(t, w, "job")
		if left := names(w, "job"); len(left) != 1 {
			t.Fatalf("after one failure: %q", left)
		}
		do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "job/job"}})
		if left := names(w, "job"); len(left) != 0 {
			t.Fatalf("of a deleted Job: %q", left)
		}
		apply(t, w, retrier)
	}
	deletePodsOf(t, w, "job")
	deletePodsOf(t, w, "job")
	do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "job/job"}})
	apply(t, w, retrier)
	if left := names(w, "job"); len(left) != 1 {
		t.Errorf("of a Job whose predecessor had failed: %q", left)
	}
}

// TestAJobWithoutIndexesIsAGangToo verifies that the pods of a Job without indexes are also members
// of the Job's gang, which is therefore complete.
func TestAJobWithoutIndexesIsAGangToo(t *testing.T) {
	const gang = `
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completions: 4
  parallelism: 2
  scheduling: {schedulingPolicy: {gang: {}}}
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}
`
	result := run(t, twoNodes+gang, simulate.Options{Gates: map[string]bool{"WorkloadWithJob": true}})
	if len(result.Pods) != 2 || len(result.Groups) != 0 {
		t.Fatalf("pods %+v, groups that are pending %+v: want two pods and no group", result.Pods, result.Groups)
	}
	for _, p := range result.Pods {
		if p.Node == "" || p.Group == "" {
			t.Errorf("%s: on %q, of the group %q", p.Name, p.Node, p.Group)
		}
	}
}

// TestTheGangOfAJobHasThePriorityOfItsPods verifies that a gang created for a Job preempts with the
// priority of its pods, because its PodGroup has their priority class.
func TestTheGangOfAJobHasThePriorityOfItsPods(t *testing.T) {
	const full = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: v1
kind: Pod
metadata: {name: low-1, uid: low-1}
spec: {nodeName: node-1, containers: [{name: c, image: i, resources: {requests: {cpu: "8"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: low-2, uid: low-2}
spec: {nodeName: node-2, containers: [{name: c, image: i, resources: {requests: {cpu: "8"}}}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  scheduling: {schedulingPolicy: {gang: {}}}
  template:
    spec:
      restartPolicy: Never
      priorityClassName: high
      containers: [{name: c, image: i, resources: {requests: {cpu: "8"}}}]
`
	result := run(t, twoNodes+full, simulate.Options{Gates: map[string]bool{"WorkloadWithJob": true}, For: time.Minute})
	if result.Groups == nil || len(result.Groups[0].Victims) != 2 {
		t.Errorf("the groups are %+v: want one that preempts both pods", result.Groups)
	}
}

// TestThePodsOfAJobShareTheClaimsOfItsGang verifies that the pods of a Job share the claims of
// their gang: two pods use one device.
func TestThePodsOfAJobShareTheClaimsOfItsGang(t *testing.T) {
	const device = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: link}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-1}
spec: {driver: link.example.com, nodeName: node-1, pool: {name: node-1, generation: 1, resourceSliceCount: 1}, devices: [{name: link-0}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: links}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: link}}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completions: 2
  parallelism: 2
  scheduling:
    schedulingPolicy: {gang: {}}
    resourceClaims: [{name: link, resourceClaimTemplateName: links}]
  template:
    spec:
      restartPolicy: Never
      resourceClaims: [{name: link, resourceClaimTemplateName: links}]
      containers: [{name: c, image: i, resources: {claims: [{name: link}]}}]
`
	result := run(t, twoNodes+device, simulate.Options{Gates: map[string]bool{"WorkloadWithJob": true}})
	for _, p := range result.Pods {
		if p.Node != "node-1" {
			t.Errorf("%s: on %q: want node-1, whose device it shares: %s", p.Name, p.Node, p.Message)
		}
	}
	if len(result.Pods) != 2 {
		t.Errorf("pods %+v: want two", result.Pods)
	}
}

// TestAControllerThatIsDoneReplacesNoPod verifies that a departed pod is not replaced by a
// suspended or finished Job, by a Job that is a work queue with a succeeded pod, or by any
// controller being deleted.
func TestAControllerThatIsDoneReplacesNoPod(t *testing.T) {
	const leaving = `, deletionTimestamp: "2026-01-01T00:00:00Z", finalizers: [foregroundDeletion]`
	for _, c := range []struct {
		kind, meta, spec, status string
		want                     simulate.Fate
	}{
		{"batch/v1 Job", "", "parallelism: 2, completions: 4", "succeeded: 1", simulate.Returns},
		{"batch/v1 Job", "", "parallelism: 2", "", simulate.Returns},
		{"batch/v1 Job", "", "parallelism: 2", "succeeded: 1", simulate.Ends},
		{"batch/v1 Job", "", "parallelism: 2, completions: 4, suspend: true", "", simulate.Ends},
		{"batch/v1 Job", "", "parallelism: 2, completions: 4", `conditions: [{type: SuccessCriteriaMet, status: "True"}]`, simulate.Ends},
		{"batch/v1 Job", leaving, "parallelism: 2, completions: 4", "", simulate.Ends},
		{"apps/v1 ReplicaSet", "", "replicas: 1, selector: {matchLabels: {app: a}}", "", simulate.Returns},
		{"apps/v1 ReplicaSet", leaving, "replicas: 1, selector: {matchLabels: {app: a}}", "", simulate.Ends},
		{"apps/v1 StatefulSet", leaving, "replicas: 1, selector: {matchLabels: {app: a}}", "", simulate.Ends},
		{"apps/v1 StatefulSet", leaving, "podManagementPolicy: Parallel, replicas: 1, selector: {matchLabels: {app: a}}", "", simulate.Ends},
	} {
		api, kind, _ := strings.Cut(c.kind, " ")
		w := opened(t, twoNodes+strings.NewReplacer("API", api, "KIND", kind, "META", c.meta, "SPEC", c.spec, "STATUS", c.status,
			"RESTART", map[bool]string{true: "Never", false: "Always"}[kind == "Job"]).Replace(`apiVersion: API
kind: KIND
metadata: {name: a, uid: a META}
spec: {SPEC, template: {metadata: {labels: {app: a}}, spec: {restartPolicy: RESTART, containers: [{name: c, image: i}]}}}
status: {STATUS}
---
apiVersion: v1
kind: Pod
metadata: {name: a-0, uid: a-0, labels: {app: a}, ownerReferences: [{apiVersion: API, kind: KIND, name: a, uid: a, controller: true}]}
spec: {nodeName: node-1, restartPolicy: RESTART, containers: [{name: c, image: i}]}
`))
		do(t, w, simulate.Operation{Evict: &simulate.Evict{Pods: []string{"a-0"}}})
		w.Advance(time.Minute)
		if d := w.Departures()[0]; d.Fate != c.want {
			t.Errorf("%s%s {%s} {%s}: %s, want %s", c.kind, c.meta, c.spec, c.status, d.Fate, c.want)
		}
	}
}

// TestAJobReplacesItsPodsAfterABackOff verifies that a Job creates no pod until its back-off since
// the last failure is over: 10 s, doubled with each consecutive failure, up to 10 min. A Job that
// limits failures per index has a separate back-off for each index.
func TestAJobReplacesItsPodsAfterABackOff(t *testing.T) {
	const job = `---
apiVersion: batch/v1
kind: Job
metadata: {name: job, uid: job}
spec:
  SPEC
  parallelism: 2
  completions: 2
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}
status: {STATUS}
`
	const unready = "conditions: [{type: Ready, status: \"False\", lastTransitionTime: \"2025-12-31T23:59:55Z\"}]"
	for name, c := range map[string]struct {
		spec, status, pods string
		delete             []string // deletions, as TIME NAME, in order of name
		want               []string // changes in the number of pods, checked every second
	}{
		"first":             {"backoffLimit: 100", "", "", []string{"0s job-0"}, []string{"10s +1"}},
		"third":             {"backoffLimit: 100", "failed: 2", "", []string{"0s job-0"}, []string{"40s +1"}},
		"longest":           {"backoffLimit: 100", "failed: 50", "", []string{"0s job-0"}, []string{"600s +1"}},
		"after a success":   {"backoffLimit: 100", "failed: 2, succeeded: 1", "", []string{"0s job-0"}, []string{"10s +1"}},
		"prolonged for all": {"backoffLimit: 100", "", "", []string{"0s job-0", "5s job-1"}, []string{"25s +2"}},
		"each index":        {"backoffLimitPerIndex: 3\n  completionMode: Indexed", "", "", []string{"0s job-0", "5s job-1"}, []string{"10s +1", "15s +1"}},
		"since unready":     {"backoffLimit: 100", "", unready, []string{"0s job-0"}, []string{"5s +1"}},
		"once it has ended": {"backoffLimit: 100\n  podReplacementPolicy: Failed", "", unready, []string{"0s job-0"}, []string{"10s +1"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := twoNodes + strings.NewReplacer("SPEC", c.spec, "STATUS", c.status).Replace(job)
			for i := range 2 {
				text += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: job-%d, uid: job-%d, annotations: {batch.kubernetes.io/job-completion-index: "%d"}, creationTimestamp: "2026-01-01T00:00:00Z",
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: job, uid: job, controller: true}]}
spec: {nodeName: node-1, restartPolicy: Never, containers: [{name: c, image: i}]}
status: {phase: Running, %s}
`, i, i, i, c.pods)
			}
			w := opened(t, text)
			left, made := map[string]bool{"job-0": true, "job-1": true}, []string(nil)
			for second := range 700 {
				at := time.Duration(second) * time.Second
				w.Advance(at)
				count := 0
				for _, name := range names(w, "job") {
					if !left[name] {
						left[name] = true
						count++
					}
				}
				if count > 0 {
					made = append(made, fmt.Sprintf("%ds +%d", second, count))
				}
				for _, deletion := range c.delete {
					if when, name, _ := strings.Cut(deletion, " "); when == at.String() {
						do(t, w, simulate.Operation{Delete: &simulate.Delete{Object: "pod/" + name}})
					}
				}
			}
			if !slices.Equal(made, c.want) {
				t.Errorf("pods are made %q, want %q", made, c.want)
			}
		})
	}
}

// TestLostNodesOfAFailedJob verifies that the loss of two nodes with pods of a Job that survives no
// failure ends both pods: the first loss fails the Job, which then deletes the other pod.
func TestLostNodesOfAFailedJob(t *testing.T) {
	job := strings.NewReplacer("backoffLimit: 1", "backoffLimit: 0\n  parallelism: 2", `"100"`, `"1"`).Replace(retrier)
	w := opened(t, twoNodes+job)
	w.Settle()
	nodes := map[string]bool{}
	for _, f := range w.Each() {
		nodes[f.Pod.NodeName] = true
	}
	if len(nodes) != 2 || nodes[""] {
		t.Fatalf("the pods are on %v", nodes)
	}
	var lost []string
	for _, n := range w.Nodes() {
		lost = append(lost, n.Name)
	}
	w.LoseNodes(lost)
	w.Advance(w.Elapsed() + 10*time.Minute)
	if left := names(w, "job"); len(left) != 0 || len(w.Departures()) != 2 {
		t.Errorf("left: %q, %d departures", left, len(w.Departures()))
	}
}
