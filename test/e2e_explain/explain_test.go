package e2eexplain

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/explain"
)

const allNodes = "node-1 node-2 node-3 node-4 node-5 node-6"

// Pods that wait for one reason each: the smallest change of a kind, done to the cluster as it is
// printed, lets them run.
func TestSuggestedChangesHelp(t *testing.T) {
	for _, c := range []struct {
		name, before, spec, kind, after string
	}{
		{
			name: "tainted", kind: "RemoveTaint", spec: `{"containers":[{"name":"c","image":"nginx"}]}`,
			before: "kubectl taint nodes " + allNodes + " team=a:NoSchedule", after: "kubectl taint nodes " + allNodes + " team- || true",
		},
		{
			name: "tolerating", kind: "Tolerate", spec: `{"containers":[{"name":"c","image":"nginx"}]}`,
			before: "kubectl taint nodes " + allNodes + " team=b:NoSchedule", after: "kubectl taint nodes " + allNodes + " team-",
		},
		{
			name: "cordoned", kind: "Uncordon", spec: `{"containers":[{"name":"c","image":"nginx"}]}`,
			before: "kubectl cordon " + allNodes, after: "kubectl uncordon " + allNodes,
		},
		{
			name: "labelled", kind: "LabelNode", spec: `{"nodeSelector":{"disk":"ssd"},"containers":[{"name":"c","image":"nginx"}]}`,
			after: "kubectl label nodes " + allNodes + " disk-",
		},
		{name: "greedy", kind: "LowerRequest", spec: `{"containers":[{"name":"c","image":"nginx","resources":{"requests":{"cpu":"200"}}}]}`},
		{
			name: "spread", kind: "SoftenSpread",
			before: `kubectl cordon node-2 node-3 node-5 node-6; kubectl run first --image=nginx --labels=run=spread --overrides='{"spec":{"nodeName":"node-1"}}'`,
			spec:   `{"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"topology.kubernetes.io/zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"run":"spread"}}}],"containers":[{"name":"c","image":"nginx"}]}`,
			after:  "kubectl uncordon node-2 node-3 node-5 node-6; kubectl delete pod first --force",
		},
		{
			name: "follower", kind: "SoftenPodAffinity",
			spec: `{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname","labelSelector":{"matchLabels":{"app":"nobody"}}}]}},"containers":[{"name":"c","image":"nginx"}]}`,
		},
		{name: "gated", kind: "RemoveGate", spec: `{"schedulingGates":[{"name":"example.com/wait"}],"containers":[{"name":"c","image":"nginx"}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			sh(t, c.before)
			defer sh(t, c.after)
			defer sh(t, "kubectl delete pod "+c.name+" --force --ignore-not-found")
			create(t, c.name, `{"metadata":{"labels":{"run":"`+c.name+`"}},"spec":`+c.spec+`}`)
			within(t, 20*time.Second, "the pod waits", func() bool { return condition(t, c.name) != "" })
			e := ask(t, c.name)
			for _, s := range e.Suggestions {
				if len(s.Changes) != 1 || s.Changes[0].Kind != c.kind {
					continue
				}
				do(t, c.name, &s.Changes[0])
				within(t, 20*time.Second, "the pod has a node after: "+s.Text, func() bool { return pod(t, c.name).Spec.NodeName != "" })
				return
			}
			t.Fatalf("no %s is suggested: %s, %+v", c.kind, e.Summary, e.Suggestions)
		})
	}
}

// What is said of a pod that is to be evicted is what happens: it goes at that time.
func TestTheTimeOfAnEvictionIsKnown(t *testing.T) {
	create(t, "soon", `{"spec":{"nodeName":"node-3","tolerations":[{"key":"hot","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}],"containers":[{"name":"c","image":"nginx"}]}}`)
	within(t, 20*time.Second, "the pod runs", func() bool { return pod(t, "soon").Status.Phase == v1.PodRunning })
	sh(t, "kubectl taint nodes node-3 hot=yes:NoExecute")
	defer sh(t, "kubectl taint nodes node-3 hot-")
	e := ask(t, "soon")
	if e.Eviction == nil || e.Eviction.Taint != "hot=yes:NoExecute" || len(e.Eviction.Cancel) == 0 {
		t.Fatalf("%+v", e.Eviction)
	}
	var gone time.Time
	within(t, 20*time.Second, "the pod goes", func() bool {
		p, err := client.CoreV1().Pods("default").Get(t.Context(), "soon", metav1.GetOptions{})
		if err != nil || p.DeletionTimestamp != nil {
			gone = time.Now()
			return true
		}
		return false
	})
	if off := gone.Sub(e.Eviction.Due.Time); off < -1500*time.Millisecond || off > 2*time.Second {
		t.Errorf("it went %v after the time that was foretold", off)
	}
}

func ask(t *testing.T, name string) *explain.Explanation {
	t.Helper()
	e := &explain.Explanation{}
	if err := json.Unmarshal([]byte(must(t, "", "explain", "pod/"+name, "-o", "json")), e); err != nil {
		t.Fatal(err)
	}
	return e
}

// do does a change as a user would: the command that is printed or, for the pod itself, the pod
// made anew with the patch.
func do(t *testing.T, name string, c *explain.Change) {
	t.Helper()
	if c.Command != "" {
		sh(t, c.Command)
		return
	}
	before := filepath.Join(t.TempDir(), "pod.json")
	if err := os.WriteFile(before, []byte(must(t, "", "kubectl", "get", "pod", name, "-o", "json")), 0o600); err != nil {
		t.Fatal(err)
	}
	patched := must(t, "", "kubectl", "patch", "--local", "-f", before, "--type", "strategic", "-p", string(c.Patch), "-o", "json")
	var p v1.Pod
	if err := json.Unmarshal([]byte(patched), &p); err != nil {
		t.Fatal(err)
	}
	sh(t, "kubectl delete pod "+name+" --force")
	p.ResourceVersion, p.UID, p.Status = "", "", v1.PodStatus{}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), &p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, name, text string) {
	t.Helper()
	var p v1.Pod
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	p.Name = name
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), &p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = berth(t, "", "kubectl", "delete", "pod", name, "--force", "--ignore-not-found") })
}

func pod(t *testing.T, name string) *v1.Pod {
	t.Helper()
	p, err := client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// condition is the reason for which the pod waits, as the scheduler or the API server wrote it.
func condition(t *testing.T, name string) string {
	for _, c := range pod(t, name).Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
			return c.Reason
		}
	}
	return ""
}

// sh runs a command line as it is printed, with the kubectl that is built in.
func sh(t *testing.T, line string) {
	t.Helper()
	if line == "" {
		return
	}
	cmd := exec.Command("sh", "-c", strings.ReplaceAll(line, "kubectl ", filepath.Join(bin, "berth")+" kubectl "))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", line, err, out)
	}
}
