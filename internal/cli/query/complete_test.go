// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

const workloads = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {replicas: 2, selector: {matchLabels: {a: w}}, template: {metadata: {labels: {a: w}}, spec: {containers: [{name: c, image: i}]}}}
`

// TestNamesInFilesAreCompleted verifies completion from the named files: nodes everywhere, other
// objects in their namespace, including the future pods of workloads.
func TestNamesInFilesAreCompleted(t *testing.T) {
	nowhere(t)
	write(t, "a.yaml", node("n2")+node("n1")+pod("x", "n1")+workloads)
	q := newQuestion("-f", "a.yaml", "-f", "a.yaml") // cobra reads flags twice
	for _, c := range []struct {
		kind      parse.Kind
		namespace string
		want      string
	}{
		{parse.Node, "shop", "n1 n2"},
		{parse.Pod, "default", "x"},
		{parse.Scalable[0], "shop", "web"},
		{parse.Scalable[0], "default", ""},
		{parse.PodGroup, "shop", ""},
	} {
		if got := strings.Join(q.NamesOf(q.cmd, c.kind, c.namespace), " "); got != c.want {
			t.Errorf("%s in %s: %s, want %s", c.kind.Name, c.namespace, got, c.want)
		}
	}
	if pods := q.NamesOf(q.cmd, parse.Pod, "shop"); len(pods) != 2 || !strings.HasPrefix(pods[0], "web-") {
		t.Errorf("pods of a Deployment: %q", pods)
	}
	for _, args := range []string{"-f -", "-f none.yaml", "--kubeconfig none"} {
		if q := newQuestion(strings.Fields(args)...); q.NamesOf(q.cmd, parse.Node, "") != nil || q.errs.Len() > 0 {
			t.Errorf("%s: something is completed, or said: %q", args, q.errs.String())
		}
	}
}

func TestReferencesAreCompleted(t *testing.T) {
	nowhere(t)
	write(t, "a.yaml", node("n2")+node("n1")+node("spare")+pod("x", "n1")+pod("z", "n1"))
	kinds := []parse.Kind{parse.Pod, parse.Node}
	for _, c := range []struct {
		before, word string
		want         string
		directive    cobra.ShellCompDirective
	}{
		{"", "", "pod/ node/", noFile | noSpace},
		{"", "no", "node/", noFile | noSpace},
		{"", "x", "", noFile | noSpace},
		{"", "po/", "po/x po/z", noFile},
		{"", "nodes/n", "nodes/n1 nodes/n2", noFile},
		{"pods", "", "x z", noFile},
		{"node", "s", "spare", noFile},
		{"", "job/", "", noFile},
	} {
		q := newQuestion("-f", "a.yaml")
		words, directive := q.Reference(q.cmd, kinds, c.before, c.word, "default")
		if got := strings.Join(words, " "); got != c.want || directive != c.directive {
			t.Errorf("%q %q: %s %v, want %s %v", c.before, c.word, got, directive, c.want, c.directive)
		}
	}
	q := newQuestion("-f", "a.yaml")
	for word, want := range map[string]string{"n": "n1 n2", "node/s": "node/spare", "pod/": ""} {
		if words, _ := q.Nodes(q.cmd, nil, word); strings.Join(words, " ") != want {
			t.Errorf("%s: %q, want %s", word, words, want)
		}
	}
}

func TestValuesOfFlagsAreCompleted(t *testing.T) {
	nowhere(t)
	api := apitest.New(t)
	for _, name := range []string{"a", "b"} {
		api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}})
	}
	api.Refuse("pods", http.StatusForbidden)
	config := kubeconfig(t, t.TempDir(), api.Config.Host, "")
	for _, c := range []struct{ flag, word, want string }{
		{"node", "", "a b"},
		{"namespace", "kube", "kube-system"},
		{"context", "", "c d"},
		{"output", "json", "json jsonpath="},
		{"output", "w", "wide"},
		{"like", "pod/", ""}, // no permission to list pods
		{"like", "sts", "statefulset/"},
	} {
		q := newQuestion("--kubeconfig", config)
		words, directive := q.FlagValues(q.cmd, c.flag, c.word, "default")
		slices.Sort(words)
		got := strings.Join(words, " ")
		if c.want == "statefulset/" {
			c.want = "" // the full word is completed, not the short form
		}
		if got != c.want || directive&noFile == 0 {
			t.Errorf("--%s %s: %q %v, want %s", c.flag, c.word, got, directive, c.want)
		}
	}
	q := newQuestion()
	if words, directive := q.FlagValues(q.cmd, "filename", "", ""); words != nil || directive != cobra.ShellCompDirectiveDefault {
		t.Errorf("--filename: %q, %v", words, directive)
	}
}

// TestCommandsCompleteTheFlagsThatTheyHave verifies completion of a command's own flags and those
// of its subcommands.
func TestCommandsCompleteTheFlagsThatTheyHave(t *testing.T) {
	nowhere(t)
	q := newQuestion("--kubeconfig", kubeconfig(t, t.TempDir(), "https://127.0.0.1:1", ""))
	q.CompleteFlags(q.cmd, new(string))
	CompleteChoices(q.cmd, "config", "one", "other")
	root := &cobra.Command{Use: "berth"}
	root.AddCommand(q.cmd)
	CompleteContexts(root)
	for flag, want := range map[string]string{"context": "c d", "config": "other"} {
		complete, has := q.cmd.GetFlagCompletionFunc(flag)
		if !has {
			t.Errorf("--%s is not completed", flag)
			continue
		}
		words, _ := complete(q.cmd, nil, map[string]string{"config": "ot"}[flag])
		if got := strings.Join(words, " "); got != want {
			t.Errorf("--%s: %s, want %s", flag, got, want)
		}
	}
	if _, has := q.cmd.GetFlagCompletionFunc("output"); !has {
		t.Error("--output is not completed")
	}
	if _, has := q.cmd.GetFlagCompletionFunc("node"); has {
		t.Error("a flag that there is not is completed")
	}
	defer func() {
		if recover() == nil {
			t.Error("a mistake in a command's definition is kept quiet")
		}
	}()
	Complete(q.cmd, "nope", nil)
}
