package simulate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Each node has a drain's timeout to itself, and kubectl goes on with the next one.
func TestADrainsTimeoutIsPerNode(t *testing.T) {
	var text strings.Builder
	text.WriteString(twoNodes)
	for name, node := range map[string]string{"stays-1": "node-1", "stays-2": "node-2", "goes": "node-2"} {
		app, _, _ := strings.Cut(name, "-")
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec: {nodeName: %s, containers: [{name: c, image: i}]}
`, name, app, node)
	}
	text.WriteString("---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: stays}\nspec: {minAvailable: 2, selector: {matchLabels: {app: stays}}}\n")
	s := run(t, text.String(), simulate.Options{For: time.Hour, Scenario: scenario(t, "- {at: 1m, drain: {nodes: [node-1, node-2], force: true, timeout: 20s}}\n")})
	var told []string
	for _, e := range s.Timeline {
		if strings.Contains(e.Kind, "Drain") {
			told = append(told, fmt.Sprint(e.Kind, " ", e.Node, " ", e.After))
		}
	}
	want := []string{"DrainBlocked node-1 60s", "DrainGaveUp node-1 80s", "PodDrained node-2 80s", "DrainBlocked node-2 80s", "DrainGaveUp node-2 100s"}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Error(diff)
	}
}

// A pod whose containers have not started, and one that is terminating, are treated as kubectl and
// the Eviction API do.
func TestDrainsOfPodsThatDoNotRun(t *testing.T) {
	const pod = `---
apiVersion: v1
kind: Pod
metadata: {name: p, uid: u, resourceVersion: "1", labels: {app: p}EXTRA}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {phase: Pending, conditions: [{type: Ready, status: "False"}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: p}
spec: {minAvailable: 1, selector: {matchLabels: {app: p}}}
`
	drain := simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}, Force: true}
	w := opened(t, twoNodes+strings.Replace(pod, "EXTRA", "", 1))
	if done := do(t, w, simulate.Operation{Drain: &drain}); len(w.Departures()) != 1 {
		t.Errorf("its image is being pulled: %+v", done.Drain)
	}
	drain.Force = false
	w = opened(t, twoNodes+strings.Replace(pod, "EXTRA", `, deletionTimestamp: "2026-01-01T01:00:00Z", deletionGracePeriodSeconds: 30`, 1))
	if done := do(t, w, simulate.Operation{Drain: &drain}); len(done.Drain.Refused) != 1 {
		t.Errorf("it has no controller: %+v", done.Drain)
	}
}

// kubectl refuses or ignores pods of DaemonSets of apps/v1 only: other kinds of that name are
// controllers like any other.
func TestDrainOfAnotherKindOfDaemonSet(t *testing.T) {
	for version, evicted := range map[string]bool{"apps/v1": false, "apps.kruise.io/v1alpha1": true} {
		w := opened(t, twoNodes+fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: p, uid: u, ownerReferences: [{apiVersion: %s, kind: DaemonSet, name: d, uid: d, controller: true}]}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {phase: Running}
`, version))
		done := do(t, w, simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}})
		if left := w.Departures(); len(left) == 1 != evicted || len(done.Drain.Refused) == 0 != evicted {
			t.Errorf("%s: %+v, left: %+v", version, done.Drain, left)
		}
	}
}
