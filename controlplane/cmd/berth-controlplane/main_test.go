// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func TestWrongUsageIsOneLineAndExitCode2(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--no-such-flag"}, "unknown flag: --no-such-flag"},
		{[]string{"--port=http"}, "--port"},
		{[]string{"--port=70000"}, "--port: 70000: must be between 1 and 65535"},
		{[]string{"--data-dir="}, "--data-dir: must not be empty"},
		{[]string{"--feature-gates=NoSuchGate=true"}, "--feature-gates: unrecognized feature gate: NoSuchGate"},
		{[]string{"--feature-gates=CompositePodGroup=true,GenericWorkload=true,TopologyAwareWorkloadScheduling=true,NoSuchGate=true"},
			"--feature-gates: unrecognized feature gate: NoSuchGate"},
		{[]string{"--feature-gates=NoSuchGate"}, "--feature-gates"},
		{[]string{"--controllers=no-such-controller"}, `--controllers: "no-such-controller": unknown controller`},
		{[]string{"--service-cluster-ip-range=10.0.0.0"}, `--service-cluster-ip-range: "10.0.0.0": must be a CIDR`},
		{[]string{"--event-ttl=-1s"}, "--event-ttl: -1s: must not be negative"},
		{[]string{"start"}, `"start": takes flags only`},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Chdir(t.TempDir())
			p := start(t, c.args...)
			expectRefusal(t, p, 2, c.says)
			if left, _ := os.ReadDir("."); len(left) > 0 {
				t.Errorf("left %s behind", left[0].Name())
			}
		})
	}
}

func TestUnusableDataDirIsOneLineAndExitCode1(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good")
	first := start(t, "--data-dir", good)
	first.waitReady(t)
	if code, _ := first.terminate(t, syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d: %s", code, first.stderr.String())
	}
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, dir string) string // returns the data directory to start with
		says  string
	}{
		{"a file", replaceWith(""), "is a file: name a directory with --data-dir"},
		{"below a file", func(t *testing.T, dir string) string {
			writeFile(t, filepath.Join(dir, "file"), "")
			return filepath.Join(dir, "file", "below")
		}, "not a directory: make it accessible or name another with --data-dir"},
		{"written by a newer Berth", put("version", `{"format":99,"kubernetes":"v1.36.3"}`), "was written by a newer version (format 99, Kubernetes v1.36.3; this is"},
		{"written by a newer Kubernetes", put("version", `{"format":1,"kubernetes":"v1.38.0"}`), "was written by a newer version (format 1, Kubernetes v1.38.0; this is"},
		{"version unreadable", put("version", "??"), `version: "??": not a version of Berth's data`},
		{"version lost", remove("version"), "but no version file: restore the file or name an empty directory"},
		{"authority broken", put("pki/ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "pki/ca.crt: not a certificate: restore the file"},
		{"authority's key lost", remove("pki/ca.key"), "pki/ca.key: no such file or directory: restore the file"},
		{"key of another authority", copyOver("pki/front-proxy-ca.key", "pki/ca.key"), "pki/ca.key: not the key of ca.crt"},
		{"token key broken", put("pki/sa.key", "nonsense"), "pki/sa.key: not a private key"},
		{"etcd's database broken", put("etcd/member/snap/db", strings.Repeat("nonsense", 10_000)), "etcd: etcd cannot start"},
		{"etcd's log broken", put("etcd/member/wal/0000000000000000-0000000000000000.wal", strings.Repeat("nonsense", 10_000)), "etcd: etcd cannot start"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
			expectRefusal(t, start(t, "--data-dir", c.spoil(t, dir)), 1, c.says)
		})
	}
}

func expectRefusal(t *testing.T, p *process, code int, says string) {
	t.Helper()
	if got := p.waitEnd(t); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	text := p.stderr.String()
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") {
		t.Errorf("not one line:\n%s", text)
	}
	if !strings.HasPrefix(text, "berth-controlplane: ") || !strings.Contains(text, says) {
		t.Errorf("said %q, want %q in it", text, says)
	}
}

func replaceWith(content string) func(*testing.T, string) string {
	return func(t *testing.T, dir string) string {
		writeFile(t, dir+"-file", content)
		return dir + "-file"
	}
}

func put(name, content string) func(*testing.T, string) string {
	return func(t *testing.T, dir string) string {
		writeFile(t, filepath.Join(dir, name), content)
		return dir
	}
}

func remove(name string) func(*testing.T, string) string {
	return func(t *testing.T, dir string) string {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
}

func copyOver(from, to string) func(*testing.T, string) string {
	return func(t *testing.T, dir string) string {
		content, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			t.Fatal(err)
		}
		return put(to, string(content))(t, dir)
	}
}

func TestOneDirectoryHasOneControlPlane(t *testing.T) {
	dir := t.TempDir()
	first := start(t, "--data-dir", dir)
	first.waitReady(t)

	expectRefusal(t, start(t, "--data-dir", dir), 1,
		fmt.Sprintf("in use by process %d: stop it or name another with --data-dir", first.cmd.Process.Pid))
	expectRefusal(t, start(t, "--data-dir", t.TempDir(), "--port", apiPort(t, dir)), 1,
		"on 127.0.0.1 is taken: stop what listens there or name another with --port")
}

func TestSIGTERMEndsItAndTheNextStartGoesOn(t *testing.T) {
	dir := t.TempDir()
	first := start(t, "--data-dir", dir)
	first.waitReady(t)
	expectProgress(t, first, dir)
	if info, err := os.Stat(filepath.Join(dir, "kubeconfig")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, %v, want mode 0600", info, err)
	}
	kubeconfig, err := os.ReadFile(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	maps := client(t, dir).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A client keeps a watch open; it must not delay the shutdown.
	if _, err := maps.Watch(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if found := children(t, first.cmd.Process.Pid); len(found) > 0 {
		t.Errorf("has children: %q", found)
	}

	port := apiPort(t, dir)
	code, took := first.terminate(t, syscall.SIGTERM)
	t.Logf("SIGTERM to end: %v", took)
	if code != 0 || first.stderr.Len() > 0 {
		t.Errorf("exit code %d, said %q", code, first.stderr.String())
	}
	if took > 20*time.Second { // on a busy machine; usually two
		t.Errorf("took %v to end, want 20 s at most", took)
	}
	if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
		c.Close()
		t.Errorf("port %s is still open", port)
	}

	second := start(t, "--data-dir", dir)
	second.waitReady(t)
	if again, err := os.ReadFile(filepath.Join(dir, "kubeconfig")); err != nil || string(again) != string(kubeconfig) {
		t.Errorf("the kubeconfig changed (%v)", err)
	}
	// Use the first process's client: port, CA and user are unchanged.
	eventually(t, func(ctx context.Context) error {
		_, err := maps.Get(ctx, "kept", metav1.GetOptions{})
		return err
	})
}

func TestRuntimeConfigAndGatesSwitchAPIsOn(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1beta1=true,api/beta=true")
	p.waitReady(t)
	if _, err := client(t, dir).Discovery().ServerResourcesForGroupVersion("scheduling.k8s.io/v1beta1"); err != nil {
		t.Errorf("the Workload API is not served: %v", err)
	}
}

func expectProgress(t *testing.T, p *process, dir string) {
	t.Helper()
	want := []string{"etcd ready (", "api server ready https://127.0.0.1:" + apiPort(t, dir) + " (", "controllers ready (", "ready kubeconfig=" + filepath.Join(dir, "kubeconfig") + " after="}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.stdout) != len(want) {
		t.Fatalf("progress %q, want lines beginning %q", p.stdout, want)
	}
	for i, prefix := range want {
		if !strings.HasPrefix(p.stdout[i], prefix) {
			t.Errorf("line %d: %q, want it to begin %q", i, p.stdout[i], prefix)
		}
	}
}

func apiPort(t *testing.T, dir string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	return server.Port()
}

func TestSIGINTDuringTheStartEndsItCleanly(t *testing.T) {
	dir := t.TempDir()
	for _, after := range []time.Duration{0, 200 * time.Millisecond, 500 * time.Millisecond} {
		p := start(t, "--data-dir", dir)
		eventually(t, func(context.Context) error { return holds(dir, p.cmd.Process.Pid) })
		expire(p.ended, after)
		code, took := p.terminate(t, syscall.SIGINT)
		if code != 0 || p.stderr.Len() > 0 || took > 5*time.Second {
			t.Errorf("after %v: exit code %d in %v, said %q", after, code, took, p.stderr.String())
		}
	}
	start(t, "--data-dir", dir).waitReady(t)
}

// holds returns nil once the process has taken the directory.
func holds(dir string, pid int) error {
	content, err := os.ReadFile(filepath.Join(dir, "lock"))
	if err == nil && strings.TrimSpace(string(content)) != strconv.Itoa(pid) {
		return fmt.Errorf("held by %s", content)
	}
	return err
}

func TestPortIsPickedAnewIfSomebodyHasTheOldOne(t *testing.T) {
	dir := t.TempDir()
	first := start(t, "--data-dir", dir)
	first.waitReady(t)
	port := apiPort(t, dir)
	first.kill()
	somebody, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer somebody.Close()

	start(t, "--data-dir", dir).waitReady(t)
	if now := apiPort(t, dir); now == port {
		t.Fatalf("kubeconfig still names port %s", port)
	}
	if _, err := client(t, dir).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the kubeconfig does not lead to the new port: %v", err)
	}
}
