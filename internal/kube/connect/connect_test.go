// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "https://file:6443", certificate-authority-data: "YQ=="}}]
users: [{name: a, user: {username: u, password: p}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
`

// TestKubectlsFlags verifies that the flags of kubectl override the kubeconfig.
func TestKubectlsFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	var f Flags
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.AddKubectlFlags(flags)
	err := flags.Parse([]string{"--kubeconfig", file, "-s", "https://other:1", "--token", "t", "--as", "jane", "--request-timeout", "7s", "--insecure-skip-tls-verify"})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := f.Config("test")
	if err != nil {
		t.Fatal(err)
	}
	if err := flags.Parse([]string{"--request-timeout", "12"}); err != nil || f.RequestTimeout != 12*time.Second {
		t.Errorf("--request-timeout 12: %v, %v", f.RequestTimeout, err)
	}
	if cfg.Host != "https://other:1" || cfg.BearerToken != "t" || cfg.Password != "" || cfg.Impersonate.UserName != "jane" || cfg.Timeout != 7*time.Second || !cfg.Insecure || len(cfg.CAData) > 0 {
		t.Errorf("%+v", cfg)
	}
	if err := flags.Parse([]string{"--request-timeout", "-1s"}); err == nil || !strings.Contains(err.Error(), "must not be negative") {
		t.Errorf("--request-timeout -1s: %v", err)
	}
}

// TestAKubeconfigWithoutACurrentContextNamesThoseThatItHas verifies that the error for a kubeconfig
// without a current context lists the contexts, and that such a kubeconfig works with --context or
// --server.
func TestAKubeconfigWithoutACurrentContextNamesThoseThatItHas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(strings.Replace(kubeconfig, "current-context: a\n", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Flags{Kubeconfig: file}).Config("test"); err == nil || !strings.Contains(err.Error(), "name one with --context: a") {
		t.Errorf("%v", err)
	}
	for _, f := range []Flags{{Kubeconfig: file, Context: "a"}, {Kubeconfig: file, Server: "https://other:1"}} {
		if _, err := f.Config("test"); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// TestAKubeconfigWithoutAClusterIsNamed verifies that the error contains the name of a kubeconfig
// that was given by the user, but has no cluster.
func TestAKubeconfigWithoutAClusterIsNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", "/nowhere/a:/nowhere/b")
	if _, err := (&Flags{}).Config("test"); err == nil || !strings.Contains(err.Error(), "(/nowhere/a:/nowhere/b does not exist, or names none)") {
		t.Errorf("KUBECONFIG: %v", err)
	}
	if _, err := (&Flags{Kubeconfig: empty}).Config("test"); err == nil || !strings.Contains(err.Error(), "("+empty+" does not exist, or names none)") {
		t.Errorf("--kubeconfig: %v", err)
	}
}
