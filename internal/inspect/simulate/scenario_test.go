// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// district is a cluster of reporting nodes in three zones, half filled by workloads.
func district(nodes int) string {
	var b strings.Builder
	for i := range nodes {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Node
metadata: {name: node-%d, labels: {kubernetes.io/hostname: node-%d, topology.kubernetes.io/zone: z%d}}
status:
  allocatable: {cpu: "8", memory: 32Gi, pods: "110"}
  conditions: [{type: Ready, status: "True"}]
`, i, i, i%3+1)
	}
	for d := range 10 {
		fmt.Fprintf(&b, `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app-%d}
spec:
  replicas: %d
  selector: {matchLabels: {app: a%d}}
  template:
    metadata: {labels: {app: a%d}}
    spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1, memory: 1Gi}}}]}
`, d, nodes*4/10, d, d)
	}
	return b.String()
}

func scenario(t testing.TB, text string) *simulate.Scenario {
	t.Helper()
	s, err := simulate.ParseScenario("scenario.yaml", []byte("apiVersion: berth.dev/v1alpha1\nkind: Scenario\nsteps:\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const outage = `
- {at: 10m, fail: {zone: z1}}
- {at: 25m, recover: {zone: z1}}
- {at: 1h, taint: {node: node-3, taints: ["maintenance:NoExecute"]}}
- {at: 2h, drain: {node: node-5, ignoreDaemonsets: true}}
- {at: 3h, scale: {workload: deployment/app-1, replicas: 2}}
- {at: 4h, fail: {nodes: [node-9, node-10]}}
`

func TestTheSameScenarioAndSeedGiveTheSameBytes(t *testing.T) {
	answer := func(seed uint64, format string) string {
		var b bytes.Buffer
		s := run(t, district(60), simulate.Options{Seed: seed, For: 5 * time.Hour, Scenario: scenario(t, outage)})
		if err := s.Write(&b, format); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, format := range []string{"", "json", "svg"} {
		first := answer(1, format)
		if diff := cmp.Diff(first, answer(1, format)); diff != "" {
			t.Fatalf("two runs differ in format %q:\n%s", format, diff)
		}
		if format == "json" && first == answer(2, format) {
			t.Error("the seed makes no difference")
		}
	}
}

// TestAZoneThatFailsIsEmptiedAtTheLimitedRate verifies that after a zone has failed and the grace
// period is over, its nodes become unreachable and are tainted at the limited rate, and their pods
// are evicted 300 s later. Pods not evicted before the zone recovers stay.
func TestAZoneThatFailsIsEmptiedAtTheLimitedRate(t *testing.T) {
	s := run(t, district(60), simulate.Options{For: time.Hour, Scenario: scenario(t, "- {at: 10m, fail: {zone: z1}}\n- {at: 16m40s, recover: {zone: z1}}\n")})
	var unknown, evicted []time.Duration
	tainted, removed := 0, 0
	for _, e := range s.Timeline {
		at := time.Duration(e.After)
		switch {
		case e.Kind == "NodeUnknown":
			unknown = append(unknown, at)
		case e.Kind == "TaintAdded" && strings.HasSuffix(e.Message, ":NoExecute"):
			tainted++
		case e.Kind == "TaintRemoved" && strings.HasSuffix(e.Message, ":NoExecute"):
			removed++
		case e.Kind == "PodEvicted":
			evicted = append(evicted, at)
		}
	}
	if len(unknown) != 20 || unknown[0] < 10*time.Minute+40*time.Second || unknown[19] > 10*time.Minute+55*time.Second {
		t.Errorf("unknown at %v: want 20 nodes, 40 to 55 s after the failure", unknown)
	}
	if tainted != 20 || removed != 20 {
		t.Errorf("%d nodes got the taint that evicts and %d lost it, want 20: at one in ten seconds all of them in 200 s", tainted, removed)
	}
	if len(evicted) == 0 || evicted[0] < 15*time.Minute+40*time.Second || evicted[0] > 15*time.Minute+56*time.Second {
		t.Errorf("first evictions at %v: want 300 s after the taint", evicted)
	}
	if nodes := len(evicted) / 4; nodes < 4 || nodes > 7 {
		t.Errorf("%d pods were evicted before the zone came back: want those of the nodes tainted in the first minute", len(evicted))
	}
}

func TestWhileEveryZoneIsDownNobodyIsEvicted(t *testing.T) {
	s := run(t, district(60), simulate.Options{For: 2 * time.Hour, Scenario: scenario(t, "- {at: 1m, fail: {all: true}}\n")})
	if len(s.Evictions) > 0 {
		t.Errorf("%d evictions", len(s.Evictions))
	}
}

// TestAStatefulSetWaitsForItsLostNode verifies that a StatefulSet's pod on an unresponsive node is
// marked for deletion and stays Terminating: its controller creates no replacement until the node
// is back or removed.
func TestAStatefulSetWaitsForItsLostNode(t *testing.T) {
	town := district(6) + `---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 1
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {nodeSelector: {topology.kubernetes.io/zone: z1}, containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}
`
	const fails = "- {at: 1m, fail: {nodes: [node-0, node-3]}}\n"
	placed := func(steps string) (list []string) {
		s := run(t, town, simulate.Options{For: 2 * time.Hour, Scenario: scenario(t, steps)})
		for _, e := range s.Timeline {
			if e.Name == "db-0" {
				list = append(list, fmt.Sprintf("%s %s", e.Kind, time.Duration(e.After).Round(time.Minute)))
			}
		}
		return list
	}
	if diff := cmp.Diff([]string{"PodPlaced 0s", "PodEvicted 7m0s"}, placed(fails)); diff != "" {
		t.Errorf("the node stays lost: %s", diff)
	}
	back := placed(fails + "- {at: 1h, recover: {all: true}}\n")
	if diff := cmp.Diff([]string{"PodPlaced 0s", "PodEvicted 7m0s", "PodPlaced 1h0m0s"}, back); diff != "" {
		t.Errorf("the node comes back: %s", diff)
	}
}

func TestScenariosThatAreWrongAreRefused(t *testing.T) {
	for _, c := range []struct{ steps, want string }{
		{"- {at: 1m, fail: {zon: z1}}", "scenario.yaml:4: steps[0].fail.zon: unknown field; did you mean zone?"},
		{"- {at: 1m}", "scenario.yaml:4: steps[0]: an operation is required besides at"},
		{"- {at: 1m, fail: {zone: a}}\n- {at: 1m, fail: {zone: a}, cordon: {node: b}}",
			"scenario.yaml:5: steps[1]: exactly one operation is required besides at, not 2: cordon, fail"},
		{"- {at: -1m, fail: {zone: a}}", "scenario.yaml:4: steps[0].at: -1m: must not be negative"},
		{"- {at: 1m, cordon: {all: true}}\n- {at: soon, fail: {zone: a}}",
			`scenario.yaml:5: steps[1].at: "soon": must be a duration, such as 30s`},
		{"- {at: 10, fail: {zone: a}}", "scenario.yaml:4: steps[0].at: 10: must be a duration, such as 30s"},
		{"- {at: 1m, explode: {zone: a}}", "scenario.yaml:4: steps[0].explode: unknown field"},
	} {
		_, err := simulate.ParseScenario("scenario.yaml", []byte("apiVersion: berth.dev/v1alpha1\nkind: Scenario\nsteps:\n"+c.steps))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.steps, err, c.want)
		}
	}
	for steps, want := range map[string]string{
		"- {at: 1m, fail: {zone: nowhere}}\n":                          `zone "nowhere"`,
		"- {at: 1m, drain: {node: none}}\n":                            `no node "none"`,
		"- {at: 1m, taint: {node: node-1, taints: [a:NoRun]}}\n":       "NoRun",
		"- {at: 1m, scale: {workload: deployment/x, replicas: 1}}\n":   "deployment default/x",
		"- {at: 1m, addNodes: {count: 0, like: node-1}}\n":             "must be from 1 to 100000",
		"- {at: 1m, condition: {node: node-1, condition: Pressure}}\n": "TYPE=True",
	} {
		_, err := simulate.Run(read(t, district(3)), simulate.Options{For: time.Hour, Scenario: scenario(t, steps)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "scenario.yaml:4: steps[0], at 1m: ") {
			t.Errorf("%s: %v, want %q", steps, err, want)
		}
	}
}

func TestThePictureIsWellFormed(t *testing.T) {
	var b bytes.Buffer
	s := run(t, district(12), simulate.Options{For: 5 * time.Hour, Scenario: scenario(t, outage)})
	if err := s.Write(&b, "svg"); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(&b)
	for {
		if _, err := decoder.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAScenarioDeploysManifests(t *testing.T) {
	files := map[string]string{"more.yaml": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: more}
spec:
  replicas: 3
  selector: {matchLabels: {app: more}}
  template:
    metadata: {labels: {app: more}}
    spec: {containers: [{name: c, image: i}]}
`}
	s := run(t, district(3), simulate.Options{
		For: time.Hour, Scenario: scenario(t, "- {at: 30m, deploy: more.yaml}\n"),
		Read: func(names []string, _ *manifest.Set) (*manifest.Set, error) { return read(t, files[names[0]]), nil },
	})
	placed := 0
	for _, p := range s.Pods {
		if strings.HasPrefix(p.Name, "more-") && p.Node != "" && p.After == simulate.Seconds(30*time.Minute) {
			placed++
		}
	}
	if placed != 3 {
		t.Errorf("%d pods of the new Deployment were placed, want 3", placed)
	}
}

// BenchmarkADay simulates a day of a cluster of a thousand nodes.
func BenchmarkADay(b *testing.B) {
	text := district(1000)
	for b.Loop() {
		set := read(b, text)
		if _, err := simulate.Run(set, simulate.Options{For: 24 * time.Hour, Scenario: scenario(b, outage)}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestANodeWhoseLeaseIsOldIsLost verifies that a node with an expired Lease in the manifests is
// silent, and its failure proceeds like in a live cluster.
func TestANodeWhoseLeaseIsOldIsLost(t *testing.T) {
	text := district(6)
	for i := range 6 {
		renewed := "2026-11-20T10:00:00.000000Z"
		if i == 2 {
			renewed = "2026-11-20T09:59:15.000000Z"
		}
		text += fmt.Sprintf("---\napiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: node-%d, namespace: kube-node-lease}\nspec: {renewTime: %q, leaseDurationSeconds: 40}\n", i, renewed)
	}
	s := run(t, text, simulate.Options{For: 10 * time.Minute})
	if len(s.Evictions) == 0 {
		t.Fatal("nobody is evicted")
	}
	for _, e := range s.Evictions {
		if at := time.Duration(e.After); e.Node != "node-2" || at < 5*time.Minute || at > 5*time.Minute+15*time.Second {
			t.Errorf("%+v: want those of node-2, 50 s after its last lease and the 300 s that pods tolerate it for", e)
		}
	}
}

// TestWhatATimelineSays verifies that removing a missing taint adds no event, a step beyond the end
// adds a note, drained pods are counted, and the picture has a mark for every executed step and
// readable times.
func TestWhatATimelineSays(t *testing.T) {
	scenario, err := simulate.ParseScenario("scenario.yaml", []byte(`
apiVersion: berth.dev/v1alpha1
kind: Scenario
for: 30m
steps:
- {at: 1m, untaint: {node: node-1, taints: [never]}}
- {at: 2m, taint: {node: node-1, taints: ["soft:PreferNoSchedule"]}}
- {at: 3m, drain: {node: node-1, force: true}}
- {at: 2h, uncordon: {node: node-1}}
`))
	if err != nil {
		t.Fatal(err)
	}
	s := run(t, `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
`, simulate.Options{For: 30 * time.Minute, Scenario: scenario})
	for _, e := range s.Timeline {
		if e.Kind == "TaintRemoved" {
			t.Errorf("removed: %+v", e)
		}
	}
	if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "steps[3], at 2h: not done") {
		t.Errorf("notes: %q", s.Notes)
	}
	if s.Totals().Drained != 1 {
		t.Errorf("%+v", s.Totals())
	}
	var picture bytes.Buffer
	if err := s.Write(&picture, "svg"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{">30m<", ">7m30s<", ">TaintAdded<", ">NodeCordoned<", `d="M70 `} {
		if !strings.Contains(picture.String(), want) {
			t.Errorf("no %s in the picture", want)
		}
	}
}
