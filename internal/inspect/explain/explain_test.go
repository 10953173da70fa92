// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestExplanations runs the text files of cases. The commands:
//
//	cluster             the base manifests for the following commands
//	explain POD [node=] with additional manifests: the explanation of the pod, in short; lenient
//	                    allows missing objects, as in a cluster; commands adds the kubectl commands
//	print POD [node=]   the explanation as printed for users
//	workload TYPE/NAME  the explanation of a workload's pods, as printed for users
//	group NAME          the explanation of the pod group, as printed for users
func TestExplanations(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		var cluster string
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "cluster" {
				cluster = d.Input + "\n---\n"
				return ""
			}
			options := explain.Options{Namespace: "default", Name: d.CmdArgs[0].Key}
			if d.HasArg("node") {
				d.ScanArgs(t, "node", &options.Node)
			}
			if namespace, name, ok := strings.Cut(options.Name, "/"); ok && d.Cmd != "workload" {
				options.Namespace, options.Name = namespace, name
			}
			set, err := manifest.Read([]string{"-"}, strings.NewReader(cluster+d.Input), manifest.Options{Lenient: d.HasArg("lenient")})
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			if d.Cmd != "workload" { // the input of workload is as read from a cluster, with the pods created by controllers
				set.Expand(1)
			}
			w, err := simulate.Open(set, simulate.Options{Seed: 1})
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			if d.Cmd == "workload" {
				found, err := w.PodsOf(options.Name, "")
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				s, err := explain.OfSeveral(w, options.Name, found, func(_ int, f simulate.Found) (*explain.Explanation, error) {
					return explain.Of(w, explain.Options{Namespace: f.Object.Namespace, Name: f.Object.Name})
				})
				if err == nil {
					err = s.CountMissing(w, "")
				}
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				var b strings.Builder
				if err := s.Write(&b, ""); err != nil {
					t.Fatal(err)
				}
				return strings.ReplaceAll(b.String(), "\n\n", "\n.\n")
			}
			if d.Cmd == "group" {
				g, err := explain.OfGroup(w, options)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				var b strings.Builder
				if err := g.Write(&b, ""); err != nil {
					t.Fatal(err)
				}
				return strings.ReplaceAll(b.String(), "\n\n", "\n.\n")
			}
			e, err := explain.Of(w, options)
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			var b strings.Builder
			if d.Cmd == "print" {
				if err := e.Write(&b, ""); err != nil {
					t.Fatal(err)
				}
				return strings.ReplaceAll(b.String(), "\n\n", "\n.\n") // a blank line would end the output
			}
			agrees(t, d.Pos, e)
			inShort(&b, e)
			if d.HasArg("commands") {
				for _, s := range e.Suggestions {
					fmt.Fprintf(&b, "$ %s\n", s.Command())
				}
			}
			return b.String()
		})
	})
}

// agrees verifies that the report on preemption by groups of nodes matches the overall report.
func agrees(t *testing.T, pos string, e *explain.Explanation) {
	t.Helper()
	if e.State != explain.Pending {
		return
	}
	p := e.Preemption
	if e.Leaving != nil && (p != nil || len(e.Suggestions) > 0) {
		t.Errorf("%s: nothing is to be done, and yet it is suggested: %v, %v", pos, p, e.Suggestions)
	}
	if p == nil {
		p = &explain.Preemption{}
	}
	for _, g := range e.Groups {
		switch {
		case g.PreemptionHelps && !p.Helps:
			t.Errorf("%s: preemption does not help, but could for %s: %v", pos, g.Plugin, g.Nodes)
		case p.Helps && slices.Contains(g.Nodes, p.Node) && !g.PreemptionHelps:
			t.Errorf("%s: preemption helps on %s, but not for %s", pos, p.Node, g.Plugin)
		}
	}
	for i, s := range e.Suggestions {
		for _, other := range e.Suggestions[:i] {
			if s.Text == other.Text {
				t.Errorf("%s: suggested twice: %s", pos, s.Text)
			}
		}
	}
}

func inShort(b *strings.Builder, e *explain.Explanation) {
	fmt.Fprintf(b, "%s: %s\n", e.State, e.Summary)
	for _, g := range e.Groups {
		fmt.Fprintf(b, "%d by %s, %s: %s %s\n", g.Count, g.Plugin, g.Code, strings.Join(g.Reasons, ", "), strings.Join(g.Detail, "; "))
	}
	if p := e.Preemption; p != nil && p.Helps {
		fmt.Fprintf(b, "preempts on %s: %v\n", p.Node, p.Victims)
	}
	if v := e.Eviction; v != nil {
		fmt.Fprintf(b, "leaves at %s for %s, there since %s\n", v.Due.UTC().Format("15:04:05"), v.Taint, v.Since.UTC().Format("15:04:05"))
		for _, c := range v.Cancel {
			fmt.Fprintf(b, "  or: %s\n", c.Text)
		}
	}
	for _, s := range e.Suggestions {
		fmt.Fprintf(b, "  %s -> %s\n", s.Text, s.Node)
	}
	for _, w := range e.Withheld {
		fmt.Fprintf(b, "  not: %s: %s\n", w.Text, w.Reason)
	}
	if n := e.Node; n != nil {
		for _, w := range n.Plugins {
			if w.Rejects {
				fmt.Fprintf(b, "%s: %s: %s %s\n", n.Name, w.Plugin, strings.Join(w.Reasons, ", "), w.Detail)
			}
		}
		if n.Preempt != "" {
			fmt.Fprintf(b, "%s: preemption: %s\n", n.Name, n.Preempt)
		}
	}
}

// TestOnlyTheTakenPortIsGivenUp verifies that, of two ports with the same number, the suggestion
// gives up only the taken one.
func TestOnlyTheTakenPortIsGivenUp(t *testing.T) {
	set, err := manifest.Read([]string{"-"}, strings.NewReader(`
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: there}
spec: {nodeName: node-1, containers: [{name: c, image: i, ports: [{containerPort: 80, hostPort: 80, hostIP: 10.0.0.1}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: i
    ports:
    - {name: tcp, containerPort: 1, hostPort: 80, hostIP: 10.0.0.1}
    - {name: other, containerPort: 2, hostPort: 80, hostIP: 10.0.0.2}
    - {name: udp, containerPort: 3, hostPort: 80, hostIP: 10.0.0.1, protocol: UDP}
`), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := simulate.Open(set, simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := explain.Of(w, explain.Options{Namespace: "default", Name: "p"})
	if err != nil {
		t.Fatal(err)
	}
	change := e.Suggestions[0].Changes[0]
	found, _ := w.Find("default", "p")
	before, err := json.Marshal(found.Object)
	if err != nil {
		t.Fatal(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, change.Patch, v1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var p v1.Pod
	if err := json.Unmarshal(after, &p); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, port := range p.Spec.Containers[0].Ports {
		if port.HostPort != 0 {
			left = append(left, port.Name)
		}
	}
	if change.Kind != "DropHostPort" || !strings.Contains(change.Text, "10.0.0.1:80") || !slices.Equal(left, []string{"other", "udp"}) {
		t.Errorf("%s: %s leaves %v", change.Kind, change.Text, left)
	}
}
