// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2enode

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// overheadPod has the handler, overhead and memory of the example in Kubernetes' documentation. Its
// CPU requests are scaled to a machine with two CPUs.
const overheadPod = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata-fc}
handler: kata-fc
overhead: {podFixed: {memory: 120Mi, cpu: 250m}}
---
apiVersion: v1
kind: Pod
metadata: {name: test-pod}
spec:
  runtimeClassName: kata-fc
  terminationGracePeriodSeconds: 1
  containers:
  - {name: busybox-ctr, image: "busybox:1", command: [sleep, "10000"], resources: {limits: {cpu: 100m, memory: 100Mi}}}
  - {name: nginx-ctr, image: "busybox:1", command: [sleep, "10000"], resources: {limits: {cpu: 300m, memory: 100Mi}}}
`

// TestNodeOfUp verifies that a pod runs, that its logs and exec work, that the pod reaches the API
// server at the service address, that its cgroup includes its overhead, and that it keeps running
// when the kubelet and containerd are killed. A killed berth up must leave nothing behind, and the
// pod must run again after a restart. The test is not parallel, because a cluster of another test
// could take the service range while this cluster is down.
func TestNodeOfUp(t *testing.T) {
	c := start(t)
	hello := c.run("hello", "echo up; sleep 10000")
	if logs := c.kubectl("logs", "hello"); logs != "up" {
		t.Errorf("logs %q", logs)
	}
	if name := c.kubectl("exec", "hello", "--", "hostname"); name != "hello" {
		t.Errorf("exec: %q", name)
	}
	reach := "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null && echo reached"
	if out := c.kubectl("exec", "hello", "--", "sh", "-c", reach); out != "reached" {
		t.Errorf("the API server from a pod: %q", out)
	}

	c.apply(overheadPod)
	pod := c.await("test-pod", "ready", ready)
	c.checkCgroup(pod)
	c.checkOverheadMetrics(pod)
	c.kubectl("delete", "pod", "test-pod")
	c.checkWhatIsCounted()

	before := hello.Status.ContainerStatuses[0].ContainerID
	c.kill(c.kubelet())
	c.kill(c.pid("containerd", filepath.Join(c.containerd, "config.toml")))
	eventually(t, "exec after kill -9", func() error {
		_, err := c.try("", "exec", "hello", "--", "true")
		return err
	})
	c.run("after", "sleep 10000")
	if now := c.await("hello", "ready", ready).Status.ContainerStatuses[0]; now.ContainerID != before || now.RestartCount != 0 {
		t.Errorf("container %s, then %s, %d restarts", before, now.ContainerID, now.RestartCount)
	}

	_ = c.process.signal(syscall.SIGKILL)
	eventually(t, "nothing is left of a killed berth up", func() error {
		if left := c.left(); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	if err := c.process.start("Berth is up"); err != nil {
		t.Fatal(err)
	}
	c.connect()
	c.await("hello", "started again", func(pod *v1.Pod) bool {
		return ready(pod) && pod.Status.ContainerStatuses[0].ContainerID != before
	})
}

// checkCgroup verifies that the limits of the pod's cgroup are the sums of its containers' limits
// and its overhead.
func (c *cluster) checkCgroup(pod *v1.Pod) {
	c.Helper()
	group := filepath.Join(c.cgroup, "kubepods", "pod"+string(pod.UID))
	want := map[string]string{
		filepath.Join("memory", group, "memory.limit_in_bytes"): "335544320",
		filepath.Join("cpu", group, "cpu.cfs_quota_us"):         "65000",
		filepath.Join("cpu", group, "cpu.cfs_period_us"):        "100000",
		filepath.Join("cpu", group, "cpu.shares"):               "665",
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		want = map[string]string{filepath.Join(group, "memory.max"): "335544320", filepath.Join(group, "cpu.max"): "65000 100000"}
	}
	for file, value := range want {
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
		if got := strings.TrimSpace(string(text)); err != nil || got != value {
			c.Errorf("%s: %q (%v), want %s", file, got, err, value)
		}
	}
}

// TestTwoClustersOnOneMachine verifies that each cluster has a separate service address, and that
// its pods reach the API server at that address.
func TestTwoClustersOnOneMachine(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	addresses := map[string]bool{}
	for _, c := range []*cluster{start(t), start(t)} {
		c.run("hello", "sleep 10000")
		services, err := c.client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		address := services.Spec.ClusterIP
		if addresses[address] {
			t.Errorf("%s is the service address of both", address)
		}
		addresses[address] = true
		if out := c.kubectl("exec", "hello", "--", "sh", "-c", "nc -w 5 $KUBERNETES_SERVICE_HOST 443 < /dev/null && echo $KUBERNETES_SERVICE_HOST"); out != address {
			t.Errorf("the pod reaches %q, want %s", out, address)
		}
	}
}

// TestAnotherKubeletIsRefused verifies that berth up --agent does not start on a machine with
// another kubelet, and that its message names the remedy.
func TestAnotherKubeletIsRefused(t *testing.T) {
	mustRunContainers(t)
	other := exec.Command("sleep", "1000")
	other.Args[0] = "kubelet"
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	up := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "berth"),
			append([]string{"up", "--agent", "--data-dir", filepath.Join(t.TempDir(), "data")}, args...)...).CombinedOutput()
		if err == nil {
			t.Fatalf("it started: %s", out)
		}
		return string(out)
	}
	if text := up(); !strings.Contains(text, "this machine is a node already") || !strings.Contains(text, "--container-runtime-endpoint") {
		t.Error(text)
	}
	socket := filepath.Join(t.TempDir(), "none.sock")
	if text := up("--container-runtime-endpoint", "unix://"+socket); !strings.Contains(text, "there is no "+socket) {
		t.Error(text)
	}
}

// checkOverheadMetrics verifies that the scheduler serves the same metrics of the pod's overhead as
// kube-state-metrics.
func (c *cluster) checkOverheadMetrics(pod *v1.Pod) {
	c.Helper()
	urls, err := os.ReadFile(filepath.Join(c.dir, "scheduler.url"))
	if err != nil {
		c.Fatal(err)
	}
	url, _, _ := strings.Cut(string(urls), "\n")
	answer, err := http.Get(url + "/metrics")
	if err != nil {
		c.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		c.Fatal(err)
	}
	for _, want := range []string{"kube_pod_overhead_cpu_cores{%s} 0.25", "kube_pod_overhead_memory_bytes{%s} 1.2582912e+08"} {
		want = fmt.Sprintf(want, fmt.Sprintf("namespace=%q,pod=%q,uid=%q", pod.Namespace, pod.Name, pod.UID))
		if !strings.Contains(string(text), want) {
			c.Errorf("/metrics of the scheduler has no %s", want)
		}
	}
}

// checkWhatIsCounted verifies that the kubelet counts /etc/hosts, but not the termination log, as
// disk usage of a pod. If that changes, docs/concepts/threat-model.md must change as well.
func (c *cluster) checkWhatIsCounted() {
	c.Helper()
	for name, file := range map[string]string{"hosts": "/etc/hosts", "log": "/dev/termination-log"} {
		c.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: fills-%s}, spec: {terminationGracePeriodSeconds: 1, containers: [
  {name: c, image: "busybox:1", command: [sh, -c, "dd if=/dev/zero of=%s bs=1M count=30; sleep 10000"], resources: {limits: {ephemeral-storage: 10Mi}}}]}}`, name, file))
	}
	c.await("fills-log", "ready", ready)
	c.await("fills-hosts", "evicted", func(pod *v1.Pod) bool { return pod.Status.Reason == "Evicted" })
	if pod := c.await("fills-log", "looked at", func(*v1.Pod) bool { return true }); pod.Status.Phase != v1.PodRunning {
		c.Errorf("the pod with the large termination log is %s: %s", pod.Status.Phase, pod.Status.Message)
	}
	c.kubectl("delete", "pod", "fills-log", "fills-hosts")
}
