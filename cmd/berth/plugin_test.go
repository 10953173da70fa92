// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

// asPlugin runs the command like a kubectl plugin, by its file name.
func asPlugin(args ...string) (out, errs string) {
	var o, e bytes.Buffer
	runCommand(context.Background(), append([]string{"/usr/local/bin/kubectl-berth"}, args...), &o, &e)
	return o.String(), e.String()
}

// TestAsAPluginOfKubectl verifies usage, examples and errors when the binary runs as kubectl-berth.
func TestAsAPluginOfKubectl(t *testing.T) {
	for _, name := range []string{"explain", "what-if", "record", "pending", "up"} {
		help, _ := asPlugin(name, "--help")
		if !strings.Contains(help, "kubectl berth "+name) {
			t.Errorf("%s: the usage does not say kubectl berth:\n%s", name, help)
		}
		_, examples, _ := strings.Cut(help, "Examples:\n")
		for line := range strings.Lines(examples) {
			if strings.HasPrefix(line, "  berth ") || strings.Contains(line, "| berth ") {
				t.Errorf("%s: an example is not the plugin's: %s", name, line)
			}
		}
		if strings.Contains(help, "kubectl kubectl") {
			t.Errorf("%s: named twice:\n%s", name, help)
		}
	}
	if help, _ := asPlugin("explain", "--help"); !strings.Contains(strings.Join(strings.Fields(help), " "), "the cluster of kubectl berth up") {
		t.Errorf("a flag's text does not say kubectl berth:\n%s", help)
	}
	if _, errs := asPlugin("explain"); !strings.HasPrefix(errs, "kubectl berth: ") || !strings.Contains(errs, "kubectl berth explain --help") {
		t.Errorf("an error says %q", errs)
	}
}

const completedTown = smallTown + `---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Namespace
metadata: {name: shipping}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
`

// TestCompletion verifies the output of __complete, which the shell's completion calls directly,
// and kubectl calls through kubectl_complete-berth.
func TestCompletion(t *testing.T) {
	town := file(t, "town.yaml", completedTown)
	kubeconfig := file(t, "kubeconfig", `{apiVersion: v1, kind: Config, contexts: [{name: prod, context: {cluster: c}}, {name: preview, context: {cluster: c}}, {name: dev, context: {cluster: c}}]}`)
	for args, want := range map[string]string{
		"ex":                                         "explain",
		"explain -f TOWN pod/":                       "pod/big pod/small",
		"explain -f TOWN pod/b":                      "pod/big",
		"explain -f TOWN pod b":                      "big",
		"explain -f TOWN dep":                        "deployment/",
		"explain -f TOWN -n shop deploy/":            "deploy/web",
		"explain -f TOWN --node n":                   "node-1",
		"explain -f TOWN -n sh":                      "shipping shop",
		"explain --kubeconfig CONF --context pr":     "preview prod",
		"explain -o j":                               "json jsonpath=",
		"pending --fail-on ":                         "pending",
		"capacity --by z":                            "zone",
		"what-if unt":                                "untaint",
		"what-if -f TOWN drain node/":                "node/node-1",
		"what-if -f TOWN drain n":                    "node-1",
		"what-if -f TOWN taint nodes no":             "node-1",
		"what-if -f TOWN add-pods --like pod/sm":     "pod/small",
		"what-if -f TOWN add-nodes 1 --like node/":   "node/node-1",
		"what-if -f TOWN -n shop scale deployment/":  "deployment/web",
		"what-if -f TOWN -n shop scale deployment w": "web",
		"what-if -f TOWN delete pod b":               "big",
		"what-if -f TOWN -n sh":                      "shipping shop",
		"what-if drain --ignore":                     "--ignore-daemonsets",
		"what-if scale --re":                         "--recursive --replicas --request-timeout",
		"what-if --fail-on p":                        "pdb pending",
	} {
		got, errs := completed(args, strings.NewReplacer("TOWN", town, "CONF", kubeconfig))
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s\n%s", args, got, want, errs)
		}
	}
}
