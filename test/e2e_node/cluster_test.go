// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2enode

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is a cluster of `berth up --agent` whose only node is this machine.
type cluster struct {
	*testing.T
	dir     string
	process *process
	client  kubernetes.Interface
	// containerd is the folder of the cluster's containerd, with the socket and the kubelet's
	// files. cgroup is the parent cgroup of the cluster's pods.
	containerd, cgroup string
	node               string
}

// start starts a cluster that ends with the test. The cluster must leave nothing behind on the
// machine.
func start(t *testing.T, args ...string) *cluster {
	t.Helper()
	mustRunContainers(t)
	dir := filepath.Join(t.TempDir(), "data")
	c := &cluster{T: t, dir: dir, process: newProcess(append([]string{filepath.Join(bin, "berth"), "up",
		"--data-dir", dir, "--agent", "--nodes", "0", "--ui-port", "-1"}, args...)...)}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := exec.Command("tail", "-n", "40", filepath.Join(dir, "kubelet.log")).Output()
			t.Logf("berth up:\n%s\nthe kubelet:\n%s", c.process.out.tail(), log)
		}
		if err := c.process.stop(); err != nil {
			t.Errorf("berth up: %v", err)
		}
		if left := c.left(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	if err := c.process.start("Berth is up"); err != nil {
		t.Fatal(err)
	}
	c.connect()
	return c
}

// connect sets the fields of c that are only known when the cluster is up.
func (c *cluster) connect() {
	c.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		c.Fatal(err)
	}
	config.QPS = -1
	c.client = kubernetes.NewForConfigOrDie(config)
	found := regexp.MustCompile(`unix://(/\S+)/containerd\.sock`).FindAllStringSubmatch(c.process.out.String(), -1)
	if found == nil {
		c.Fatalf("berth up does not say which containerd it has started:\n%s", c.process.out.tail())
	}
	c.containerd = found[len(found)-1][1]
	name, err := os.ReadFile(filepath.Join(c.containerd, "name"))
	if err != nil {
		c.Fatal(err)
	}
	c.cgroup = strings.TrimSpace(string(name))
	nodes, err := c.client.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		c.Fatalf("%d nodes (%v)", len(nodes.Items), err)
	}
	c.node = nodes.Items[0].Name
}

// left lists what remains of the cluster on the machine: its folder, network, cgroups, links to its
// logs, and mounts.
func (c *cluster) left() (left []string) {
	if c.containerd == "" {
		return nil
	}
	for _, pattern := range []string{c.containerd, "/sys/class/net/" + c.cgroup, "/sys/fs/cgroup/" + c.cgroup, "/sys/fs/cgroup/*/" + c.cgroup} {
		found, _ := filepath.Glob(pattern)
		left = append(left, found...)
	}
	links, _ := filepath.Glob("/var/log/containers/*")
	for _, link := range links {
		if to, _ := os.Readlink(link); strings.HasPrefix(to, c.containerd) {
			left = append(left, link)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Contains(string(mounts), c.containerd) {
		left = append(left, "mounts below "+c.containerd)
	}
	return left
}

// kubelet returns the PID of the cluster's kubelet.
func (c *cluster) kubelet() int {
	return c.pid("kubelet", filepath.Join(c.containerd, "kubelet", "config.yaml"))
}

// pid waits for a process of the given program with the given argument, and returns its PID.
func (c *cluster) pid(program, word string) (pid int) {
	c.Helper()
	eventually(c.T, program+" runs", func() error {
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range all {
			text, _ := os.ReadFile(file)
			words := strings.Split(string(text), "\x00")
			if filepath.Base(words[0]) == program && strings.Contains(string(text), "\x00"+word+"\x00") {
				_, err := fmt.Sscanf(file, "/proc/%d/", &pid)
				return err
			}
		}
		return errNotYet
	})
	return pid
}

func (c *cluster) kill(pid int) {
	c.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) try(stdin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, "berth"), append([]string{"kubectl", "--data-dir", c.dir}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, wrong.String())
	}
	return out.String(), nil
}

// kubectl runs the built-in kubectl and returns its output.
func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	out, err := c.try("", args...)
	if err != nil {
		c.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// apply applies manifests.
func (c *cluster) apply(manifests string) {
	c.Helper()
	if _, err := c.try(manifests, "apply", "-f", "-"); err != nil {
		c.Fatal(err)
	}
}

// run creates a pod with a shell command and waits until it is ready.
func (c *cluster) run(name, script string) *v1.Pod {
	c.Helper()
	c.kubectl("run", name, "--image=busybox:1", "--", "sh", "-c", script)
	return c.await(name, "ready", ready)
}

// await waits until the pod satisfies the predicate, and returns the pod.
func (c *cluster) await(name, what string, is func(*v1.Pod) bool) (pod *v1.Pod) {
	c.Helper()
	eventually(c.T, name+" "+what, func() (err error) {
		if pod, err = c.client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !is(pod) {
			return fmt.Errorf("it is %s %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
	return pod
}

func ready(pod *v1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}
