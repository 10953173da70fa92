// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const smallTown = `apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "2", memory: 4Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: small}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: big}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
`

// command runs berth as from a shell.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = runCommand(context.Background(), append([]string{"berth"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSimulatePrintsNothingButTheAnswer(t *testing.T) {
	town := file(t, "town.yaml", smallTown)
	code, out, errs := command(t, "simulate", "-f", town)
	want := `NAMESPACE   NAME    NODE     WHY
default     small   node-1
default     big     <none>   0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.

1 placed, 1 pending, 0 preempted, 0 evicted
`
	if code != 0 || out != want {
		t.Errorf("exit code %d and\n%s\nwant 0 and\n%s", code, out, want)
	}
	if errs != "not used: 1 ConfigMap\n" {
		t.Errorf("on standard error: %q", errs)
	}
}

// TestNamesInManifestsDoNotSteerTheTerminal verifies that control sequences in manifests do not
// reach standard error.
func TestNamesInManifestsDoNotSteerTheTerminal(t *testing.T) {
	town := file(t, "town.yaml", smallTown+`---
{apiVersion: v1, kind: "Odd\x1b[2J"}
`)
	_, out, errs := command(t, "simulate", "-f", town)
	if strings.Contains(out+errs, "\x1b") || !strings.Contains(errs, `x1b[2J`) {
		t.Errorf("%q and %q", out, errs)
	}
}

func TestSimulateReadsFoldersAndAnswersInJSON(t *testing.T) {
	town := file(t, "town.yaml", smallTown)
	code, out, errs := command(t, "simulate", "-f", filepath.Dir(town), "--explain", "--seed", "7", "-o", "json")
	var answer struct {
		APIVersion, Kind string
		Pods             []struct{ Name, Node string }
	}
	if err := json.Unmarshal([]byte(out), &answer); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v\n%s", code, err, errs)
	}
	if answer.APIVersion != "berth.dev/v1alpha1" || answer.Kind != "Simulation" || len(answer.Pods) != 2 || answer.Pods[0].Node != "node-1" {
		t.Errorf("%+v", answer)
	}
}

func TestSimulateObeysTheConfiguration(t *testing.T) {
	town := file(t, "town.yaml", smallTown)
	scheduler := file(t, "scheduler.yaml", `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {filter: {disabled: [{name: NodeResourcesFit}]}, preFilter: {disabled: [{name: NodeResourcesFit}]}}
`)
	code, out, errs := command(t, "simulate", "-f", town, "--config", scheduler)
	if code != 0 || !strings.HasSuffix(out, "2 placed, 0 pending, 0 preempted, 0 evicted\n") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

func TestSimulateSaysWhatIsWrongAndWhere(t *testing.T) {
	bad := file(t, "nodes.yaml", `apiVersion: v1
kind: Node
metadata: {name: node-1}
spec:
  taints:
  - key: key1
    effect: NoRun
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {nodeName: elsewhere, containers: [{name: c, image: i}]}
`)
	refused := file(t, "pods.yaml", `apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {overhead: {cpu: 1}, containers: [{name: c, image: i}]}
`)
	scheduler := file(t, "scheduler.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: 3\n")
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-f", bad}, 1, `nodes.yaml:7: spec.taints[0].effect: "NoRun": must be NoSchedule, PreferNoSchedule or NoExecute`},
		{[]string{"-f", refused}, 1, `pods.yaml:1: spec.overhead: pod default/p: `},
		{[]string{"-f", "no-such.yaml"}, 1, `no-such.yaml`},
		{[]string{"-f", bad, "--config", scheduler}, 1, `scheduler.yaml`},
		{nil, 2, `use -f FILE`},
		{[]string{"-f", bad, "-o", "xml"}, 2, `--output "xml": must be json, yaml, jsonpath=TEMPLATE, name, wide or svg`},
		{[]string{"-f", bad, "--for", "-1s"}, 2, `--for -1s: must not be negative`},
		{[]string{"-f", bad, "--nonsense"}, 2, `unknown flag: --nonsense`},
		{[]string{bad}, 2, `no argument is expected; files are named with -f`},
	} {
		code, out, errs := command(t, append([]string{"simulate"}, test.args...)...)
		if code != test.code || out != "" || !strings.Contains(errs, test.want) {
			t.Errorf("simulate %v: exit code %d, %q on standard output and\n%swant %d, nothing, and\n%s", test.args, code, out, errs, test.code, test.want)
		}
		if strings.Count(errs, "\n") != 1 && len(test.args) > 1 && test.args[1] != bad {
			t.Errorf("simulate %v: more than a line: %q", test.args, errs)
		}
	}
}
