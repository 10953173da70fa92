// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUpBringsThreeReadyNodesInThreeZones(t *testing.T) {
	list, err := shared.client.CoreV1().Nodes().List(background(), metav1.ListOptions{LabelSelector: "berth.dev/simulated"})
	if err != nil {
		t.Fatal(err)
	}
	zones := map[string]bool{}
	for _, node := range list.Items {
		zones[node.Labels[v1.LabelTopologyZone]] = true
		ready := false
		for _, c := range node.Status.Conditions {
			ready = ready || c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		}
		if !ready {
			t.Errorf("%s is not Ready", node.Name)
		}
	}
	if len(list.Items) != 3 || len(zones) != 3 {
		t.Errorf("%d nodes in zones %v, want 3 in 3", len(list.Items), zones)
	}
	for _, want := range []string{filepath.Join(shared.dir, "kubeconfig"), "kubectl get nodes", "nodes fail"} {
		if !strings.Contains(shared.out.String(), want) {
			t.Errorf("up does not print %q:\n%s", want, shared.out)
		}
	}
	if strings.ContainsAny(shared.out.String(), "\r\x1b") {
		t.Errorf("up writes control characters where there is no terminal:\n%q", shared.out.String())
	}
}

func TestWrongUsageIsOneLineAndExitCode2(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"up --nodes -1", "--nodes -1: must be 0 or more"},
		{"up --zones -1", "--zones -1: must be 0 or more"},
		{"up --port 70000", "--port 70000: must be between"},
		{"up --nope", "unknown flag: --nope"},
		{"up now", "no argument is expected"},
		{"upp", `unknown command "upp"`},
		{"nodes --count x", "invalid argument"},
		{"nodes --count -1", "--count -1: must be 0 or more"},
		{"nodes --cpu many", `--cpu "many": must be a quantity`},
		{"nodes --resource gpu", "must be NAME=QUANTITY"},
		{"nodes --taint a=b:NoRun", "must be NoSchedule, PreferNoSchedule or NoExecute"},
		{"nodes --label a", "must be KEY=VALUE"},
		{"nodes --name-prefix UP", "--name-prefix"},
		{"nodes --lease-renew-interval 50s", "the lease's duration"},
		{"nodes --count 1000000", "there are addresses for"},
		{"nodes fial", "did you mean fail?"},
		{"nodes fail", "NODE, --node NODE or --zone ZONE"},
		{"nodes fail --node node-1 --for -3s", "must be 1s or more"},
		{"nodes condition node-1", "name a condition"},
		{"nodes condition node-1 MemoryPressure=Yes", "must be True, False or Unknown"},
		{"nodes condition MemoryPressure=True", "NODE, --node NODE or --zone ZONE"},
		{"version -o xml", "must be json or yaml"},
	} {
		r := berth(t, strings.Fields(c.args)...)
		r.wants(t, 2, c.says)
		r.oneLine(t)
	}
}

func TestWhatCannotBeDoneIsOneLineAndExitCode1(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(nowhere, []byte(strings.ReplaceAll(
		string(read(t, filepath.Join(shared.dir, "kubeconfig"))), server(t), "https://127.0.0.1:1")), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"up", "--data-dir", shared.dir}, "another berth up uses it"},
		{[]string{"up", "--data-dir", t.TempDir(), "--port", port}, "port " + port},
		{[]string{"up", "--data-dir", file}, "not a directory"},
		{[]string{"up", "--data-dir", filepath.Dir(file)}, "was not made by Berth"},
		{[]string{"up", "--fresh", "--data-dir", filepath.Dir(file)}, "was not made by Berth"},
		{[]string{"up", "--controlplane", "/nowhere/berth-controlplane"}, "--controlplane"},
		{[]string{"nodes", "--kubeconfig", "/nowhere/kubeconfig"}, "/nowhere/kubeconfig"},
		{[]string{"nodes", "--kubeconfig", nowhere}, "cannot be reached"},
		{[]string{"nodes", "fail", "--node", "node-1", "--kubeconfig", nowhere}, "cannot be reached"},
		{[]string{"nodes", "fail", "--node", "node-77"}, "node node-77: not found"},
		{[]string{"nodes", "fail", "--zone", "z77"}, "there are z1, z2, z3"},
		{[]string{"kubectl", "--data-dir", t.TempDir(), "get", "nodes"}, "run `berth up` first"},
	} {
		began := time.Now()
		r := berth(t, c.args...)
		r.wants(t, 1, c.says)
		r.oneLine(t)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%v took %s to fail", c.args, took)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("--fresh touched a directory that is not Berth's: %v", err)
	}
}

func TestNodesThatAreNotSimulatedAreLeftAlone(t *testing.T) {
	apply(t, "apiVersion: v1\nkind: Node\nmetadata: {name: real-1}\n")
	t.Cleanup(func() { kubectl(t, "delete", "node", "real-1") })
	berth(t, "nodes", "fail", "--node", "real-1").wants(t, 1, "is not a simulated node")
	berth(t, "nodes", "--name-prefix", "real-", "--count", "1").wants(t, 1, "exists and is not simulated")
}

func TestStateOutlivesCtrlCAndKillAndIsForgottenByFresh(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	c := start(t, dir, "--nodes", "2")
	remember(t, c, "first")
	children := descendants(c.cmd.Process.Pid)
	if len(children) < 2 {
		t.Fatalf("berth up has the children %v, want two or more", children)
	}
	if err := c.stop(); err != nil {
		t.Errorf("Ctrl-C: %v\n%s", err, c.out)
	}
	allGone(t, children)

	c = start(t, dir, "--nodes", "2")
	recalls(t, c, "first")
	remember(t, c, "second")
	children = descendants(c.cmd.Process.Pid)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	allGone(t, children)

	c = start(t, dir, "--nodes", "1")
	recalls(t, c, "second")
	eventually(t, patience, func() error {
		if nodes, err := c.client.CoreV1().Nodes().List(background(), metav1.ListOptions{}); err != nil || len(nodes.Items) != 1 {
			return fmt.Errorf("not one node after --nodes 1: %v", err)
		}
		return nil
	})
	if err := c.stop(); err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}

	c = start(t, dir, "--fresh", "--nodes", "0")
	if _, err := c.client.CoreV1().ConfigMaps("default").Get(background(), "first", metav1.GetOptions{}); err == nil {
		t.Error("--fresh remembers")
	}
}

func remember(t *testing.T, c *cluster, name string) {
	t.Helper()
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.client.CoreV1().ConfigMaps("default").Create(background(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func recalls(t *testing.T, c *cluster, name string) {
	t.Helper()
	if _, err := c.client.CoreV1().ConfigMaps("default").Get(background(), name, metav1.GetOptions{}); err != nil {
		t.Errorf("the next up does not go on: %v", err)
	}
}

func allGone(t *testing.T, pids []int) {
	t.Helper()
	eventually(t, patience, func() error {
		for _, pid := range pids {
			if running(pid) {
				return fmt.Errorf("process %d still runs", pid)
			}
		}
		return nil
	})
}

func TestAPartThatDiesIsStartedAgainAndPodsAreUntouched(t *testing.T) {
	apply(t, pod("untouched", "node-1"))
	awaits(t, patience, "pod/untouched", "{.status.phase}", "Running")
	before := get(t, "pod/untouched", "{.status.containerStatuses}{.status.podIP}{.metadata.resourceVersion}")
	pid := shared.child(t, "nodes")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := shared.out.awaitLine("nodes: ended with signal: killed", shared.ended); err != nil {
		t.Fatal(err)
	}
	if err := shared.out.awaitLine("nodes: running again", shared.ended); err != nil {
		t.Fatal(err)
	}
	// When another pod runs, the restarted process has synced.
	apply(t, pod("after", "node-1"))
	awaits(t, patience, "pod/after", "{.status.phase}", "Running")
	if after := get(t, "pod/untouched", "{.status.containerStatuses}{.status.podIP}{.metadata.resourceVersion}"); after != before {
		t.Errorf("the pod was changed by the restart:\n%s\n%s", before, after)
	}
	if ip := get(t, "pod/after", "{.status.podIP}"); ip == get(t, "pod/untouched", "{.status.podIP}") {
		t.Errorf("two pods have the address %s", ip)
	}
	kubectl(t, "delete", "pod", "untouched", "after")
}

func TestVersionNamesTheKubernetesItFollows(t *testing.T) {
	var v struct{ Kubernetes, Version string }
	if err := json.Unmarshal([]byte(berth(t, "version", "-o", "json").stdout), &v); err != nil {
		t.Fatal(err)
	}
	mod := string(read(t, "../go.mod"))
	_, rest, _ := strings.Cut(mod, "k8s.io/kubernetes ")
	if follows := strings.Fields(rest)[0]; v.Kubernetes != follows || v.Version == "" {
		t.Errorf("berth version says %+v, the control plane is built from Kubernetes %s", v, follows)
	}
	berth(t, "version", "-o", "yaml").wants(t, 0, "kubernetes: "+v.Kubernetes)
}

func TestAsAPluginItIsCalledKubectlBerth(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(bin, "berth"), filepath.Join(dir, "kubectl-berth")); err != nil {
		t.Fatal(err)
	}
	execute(t, nil, "", filepath.Join(dir, "kubectl-berth"), "nodes", "--help").wants(t, 0, "kubectl berth nodes [flags]")
	// The built-in kubectl must find the plugin as well.
	env := []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "BERTH_DATA_DIR=" + shared.dir}
	execute(t, env, "", filepath.Join(bin, "berth"), "kubectl", "berth", "version").wants(t, 0, "Kubernetes v1.")
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// server returns the address of the shared cluster's API server.
func server(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(string(read(t, filepath.Join(shared.dir, "kubeconfig")))) {
		if address, ok := strings.CutPrefix(strings.TrimSpace(line), "server: "); ok {
			return strings.TrimSpace(address)
		}
	}
	t.Fatal("no server in the kubeconfig")
	return ""
}
