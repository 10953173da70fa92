// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/kube/connect"
)

// TestACommandWithoutAClusterSaysWhatToCheck verifies that every cluster command reports an
// unreachable API server and the remedy in one line.
func TestACommandWithoutAClusterSaysWhatToCheck(t *testing.T) {
	kubeconfig := file(t, "config", "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: {token: x}}], "+
		"contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}")
	for _, command := range []string{
		"check", "check --for scheduler", "explain pod/a", "explain -l a=b", "pending", "evictions", "capacity", "what-if cordon a", "rebalance",
		"drain a", "drain -l a=b", "record -o " + filepath.Join(t.TempDir(), "recording"), "nodes fail a", "nodes condition a Ready=False",
	} {
		code, stdout, stderr := call(append(strings.Fields(command), "--kubeconfig", kubeconfig)...)
		if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "the API server (https://127.0.0.1:1) cannot be reached") {
			t.Errorf("berth %s: exit code %d, %q, %q", command, code, stdout, stderr)
		}
	}
}

// TestABerthFolderOfSomebodyElsesIsRefused verifies that a .berth folder left by another user in
// the current folder is rejected: its programs do not run, and its cluster is not contacted.
func TestABerthFolderOfSomebodyElsesIsRefused(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv(connect.EnvDataDir, "")
	ran := filepath.Join(t.TempDir(), "ran")
	exec := fmt.Sprintf("{exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [%q], interactiveMode: Never}}", ran)
	for name, c := range map[string]struct {
		user  string
		mode  os.FileMode
		owner int
		want  string
	}{
		"an exec plugin":   {exec, 0o600, os.Geteuid(), `user "u" runs a program (exec: touch)`},
		"as git leaves it": {"{token: x}", 0o644, os.Geteuid(), "has mode 0644"},
		"another owner":    {"{token: x}", 0o600, 12345, "belongs to user 12345"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.Mkdir(".berth", 0o700); err != nil {
				t.Fatal(err)
			}
			content := "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: " + c.user +
				"}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
			if err := os.WriteFile(".berth/kubeconfig", []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(".berth/kubeconfig", c.mode); err != nil {
				t.Fatal(err)
			}
			if c.owner != os.Geteuid() {
				if err := os.Chown(".berth", c.owner, -1); err != nil {
					t.Skipf("only root gives a folder away: %v", err)
				}
			}
			for _, command := range [][]string{{"check"}, {"kubectl", "get", "pods"}, {"kubectl", "__complete", "get", "pods", ""}} {
				code, out, err := call(command...)
				if code == 0 || !strings.Contains(err, c.want) || !strings.Contains(err, ".berth/kubeconfig is not trusted") || strings.Count(strings.TrimSpace(err), "\n") > 0 {
					t.Errorf("berth %v: %d, %s%s, want %q in one line", command, code, out, err, c.want)
				}
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the program has run")
			}
		})
	}
}

// TestWhatAUserHasAddedToTheKubeconfigIsNotInTheWay verifies that a cluster and a user added to the
// kubeconfig of berth up do not affect commands for that cluster, and that flags such as --context
// cannot select them.
func TestWhatAUserHasAddedToTheKubeconfigIsNotInTheWay(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv(connect.EnvDataDir, "")
	t.Chdir(t.TempDir())
	if err := os.Mkdir(".berth", 0o700); err != nil {
		t.Fatal(err)
	}
	const content = `{apiVersion: v1, kind: Config, current-context: berth,
clusters: [{name: berth, cluster: {server: "https://127.0.0.1:1"}}, {name: far, cluster: {server: "https://10.1.2.3:6443"}}],
users: [{name: u, user: {token: x}}, {name: exec, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, interactiveMode: Never}}}],
contexts: [{name: berth, context: {cluster: berth, user: u}}, {name: prod, context: {cluster: far, user: exec}}]}`
	if err := os.WriteFile(".berth/kubeconfig", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"check":                           "the API server (https://127.0.0.1:1) cannot be reached",
		"kubectl get pods":                "the cluster in .berth is not running",
		"check --context prod":            ".berth/kubeconfig is not trusted",
		"kubectl --context prod get pods": ".berth/kubeconfig is not trusted",
		"kubectl get pods --cluster=far":  ".berth/kubeconfig is not trusted",
		"kubectl get pods --user exec":    ".berth/kubeconfig is not trusted",
	} {
		code, out, err := call(strings.Fields(command)...)
		if code == 0 || !strings.Contains(err, want) || strings.Count(strings.TrimSpace(err), "\n") > 0 {
			t.Errorf("berth %s: %d, %s%s, want %q in one line", command, code, out, err, want)
		}
	}
}
