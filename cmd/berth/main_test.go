// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

// call runs the command like main.
func call(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = runCommand(context.Background(), append([]string{"berth"}, args...), &out, &err)
	return code, out.String(), err.String()
}

func TestBerthAlonePrintsHelpByGroups(t *testing.T) {
	code, stdout, stderr := call()
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{"Try Berth:", "up ", "kubectl ", "nodes ", "Other:", "version "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	files, err := helpTexts.ReadDir("help")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]bool{} // without a command
	for _, file := range files {
		texts[file.Name()] = true
	}

	root := newRoot("berth")
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		delete(texts, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".txt")
		own := cmd.Name() == "kubectl" || cmd.Name() == "help" // help by a library
		if cmd.Parent() == root && !cmd.HasSubCommands() && !own && !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s has no example: %q", cmd.CommandPath(), cmd.Example)
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(root)
	if len(texts) > 0 {
		t.Errorf("no command has these texts: %v", slices.Sorted(maps.Keys(texts)))
	}
}

func TestATypoIsCorrected(t *testing.T) {
	for typo, want := range map[string]string{"kubctl": "kubectl", "node": "nodes", "vesion": "version"} {
		if code, _, stderr := call(typo); code != exitUsage || !strings.Contains(stderr, "did you mean "+want+"?") {
			t.Errorf("%s: exit code %d, %q", typo, code, stderr)
		}
	}
}

func TestHelpOfWhatIsNoCommandIsAWrongUsage(t *testing.T) {
	for topic, want := range map[string]string{
		"nope": `unknown command "nope"`, "explan": "did you mean explain?", "nodes fial": "did you mean fail?",
	} {
		code, stdout, stderr := call(append([]string{"help"}, strings.Fields(topic)...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("help %s: exit code %d, %q, %q", topic, code, stdout, stderr)
		}
	}
	for topic, want := range map[string]string{"": "Try Berth:", "nodes fail": "berth nodes fail", "kubectl get": "kubectl, built in", "what-if drain": "berth what-if", "help": "berth help"} {
		if code, stdout, stderr := call(append([]string{"help"}, strings.Fields(topic)...)...); code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("help %s: exit code %d, %q, %q", topic, code, stdout, stderr)
		}
	}
}

func TestDisplayNameIsWhatWasTyped(t *testing.T) {
	for argv0, want := range map[string]string{
		"berth": "berth", "/usr/bin/berth": "berth", "./bin/berth": "berth",
		"kubectl-berth": "kubectl berth", "/home/a/.krew/bin/kubectl-berth": "kubectl berth",
	} {
		if got := displayName(argv0); got != want {
			t.Errorf("%s: %q, want %q", argv0, got, want)
		}
	}
}

func TestKubernetesVersionOfALibrary(t *testing.T) {
	for library, want := range map[string]string{"v0.36.3": "v1.36.3", "v0.37.0-rc.1": "v1.37.0-rc.1", "v1.36.3": "v1.36.3"} {
		if got := kubernetesOf(library); got != want {
			t.Errorf("%s: %s, want %s", library, got, want)
		}
	}
}

func TestDataDirBeforeKubectlsOwnArguments(t *testing.T) {
	t.Setenv(connect.EnvDataDir, "")
	for _, c := range []struct{ args, dir, rest string }{
		{"get pods", ".berth", "get pods"},
		{"--data-dir x get pods", "x", "get pods"},
		{"--data-dir=x get pods", "x", "get pods"},
		{"get pods --data-dir x", ".berth", "get pods --data-dir x"},
		{"", ".berth", ""},
	} {
		dir, rest, err := takeDataDir(strings.Fields(c.args))
		if err != nil || dir != c.dir || !slices.Equal(rest, strings.Fields(c.rest)) {
			t.Errorf("%q: %q, %v, %v", c.args, dir, rest, err)
		}
	}
	for _, wrong := range []string{"--data-dir", "--data-dir="} {
		if _, _, err := takeDataDir([]string{wrong}); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

func TestKubectlTalksToNoOtherClusterThanBerths(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, env, args string
		fails           bool
		kubeconfig      string
	}{
		{name: "no cluster", args: "get pods", fails: true},
		{name: "no cluster, deleting", args: "delete pods --all", fails: true},
		{name: "KUBECONFIG", env: "/theirs", args: "get pods", kubeconfig: "/theirs"},
		{name: "--kubeconfig", args: "get pods --kubeconfig /theirs"},
		{name: "--kubeconfig=", args: "--kubeconfig=/theirs get pods"},
		{name: "-s", args: "-shttps://theirs get pods"},
		{name: "-s of what runs in a container", args: "exec web -- curl -s http://web", fails: true},
		{name: "--kubeconfig of what runs in a container", args: "run it --image=i -- tool --kubeconfig /x", fails: true},
		{name: "-h of what runs in a container", args: "exec web -- df -h", fails: true},
		{name: "needs none", args: "kustomize .", kubeconfig: filepath.Join(dir, "kubeconfig")},
		{name: "help", args: "get --help", kubeconfig: filepath.Join(dir, "kubeconfig")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.env)
			err := pointAt(dir, strings.Fields(c.args))
			if (err != nil) != c.fails || os.Getenv("KUBECONFIG") != c.kubeconfig {
				t.Errorf("error %v, KUBECONFIG %q", err, os.Getenv("KUBECONFIG"))
			}
		})
	}
}

// TestKubectlWithoutTheClusterRunningSaysWhatToDo verifies that kubectl reports a data directory's
// stopped cluster in one line with a remedy, without retries, and that commands which need no
// cluster still work.
func TestKubectlWithoutTheClusterRunningSaysWhatToDo(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'https://%s'}}], users: [{name: u, user: {token: x}}], "+
		"contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}", listener.Addr())
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"get pods", "apply -f x.yaml", "version"} {
		t.Setenv("KUBECONFIG", "")
		if err := pointAt(dir, strings.Fields(args)); err != nil {
			t.Errorf("%s, while it runs: %v", args, err)
		}
	}
	listener.Close()
	for args, fails := range map[string]bool{
		"get pods": true, "version": true, "delete pods --all": true, "apply -f x.yaml --dry-run=server": true,
		"version --client": false, "config view": false, "__complete get pods": false, "create deployment x --image=y --dry-run=client -o yaml": false,
		"label --local -f x.yaml a=b": false,
	} {
		t.Setenv("KUBECONFIG", "")
		if err := pointAt(dir, strings.Fields(args)); (err != nil) != fails {
			t.Errorf("%s: %v", args, err)
		}
	}
	t.Setenv("KUBECONFIG", "")
	code, stdout, stderr := call("kubectl", "--data-dir", dir, "get", "pods")
	want := "berth: the cluster in " + dir + " is not running: nothing answers at " + listener.Addr().String() +
		": start it with `berth up --data-dir " + dir + "`, or name another one with --data-dir, KUBECONFIG or --kubeconfig\n"
	if code != exitFailed || stdout != "" || stderr != want {
		t.Errorf("exit code %d, %q, %q, want %q", code, stdout, stderr, want)
	}
}

func TestAnErrorOfSeveralLinesIsPrintedAsOne(t *testing.T) {
	if got := print.OneLine(usagef("a:\n  b\n  c")); got != "a: b c" {
		t.Errorf("%q", got)
	}
}

func TestWordsAreQuotedForTheShell(t *testing.T) {
	for word, want := range map[string]string{"/tmp/x": "/tmp/x", "a b": "'a b'", "it's": `'it'\''s'`, "": "''"} {
		if got := print.ShellWord(word); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	if code, stdout, stderr := call("--version"); code != 0 || !strings.HasPrefix(stdout, "Berth ") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

// TestNodesAreChosenAmongTheSelected verifies that drain --choose is limited to the selected nodes.
func TestNodesAreChosenAmongTheSelected(t *testing.T) {
	town := file(t, "town.yaml", smallTown)
	if code, _, errs := command(t, "what-if", "drain", "--choose", "1", "-l", "pool=none", "-f", town); code == 0 || !strings.Contains(errs, `selector "pool=none"`) {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

// TestNumbersHaveBounds verifies that out-of-range numbers are rejected before any input is read.
func TestNumbersHaveBounds(t *testing.T) {
	town := file(t, "town.yaml", smallTown)
	for args, want := range map[string]string{
		"what-if --for -5s drain node/node-1":            "must not be negative",
		"what-if drain --choose -1":                      "must be 1 or more",
		"what-if drain node/node-1 --timeout -1s":        "must not be negative",
		"what-if add-nodes 1000000000 --like node-1":     "from 1 to 100000",
		"what-if add-pods 1000000000 --like pod/small":   "from 1 to 200000",
		"pending --every 1ms":                            "must be 1s or more",
		"what-if drain node node-1 --ignore-daemonsets ": "", // kubectl's form of a node name
		"what-if taint nodes node-1 a=b:NoSchedule":      "",
	} {
		code, _, errs := command(t, append(strings.Fields(args), "-f", town)...)
		if (code != 0) != (want != "") || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s", args, code, errs)
		}
	}
}
