// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pluginparity

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-k8s/berth/examples/extender/datasets"
	"github.com/berth-k8s/berth/test/internal/output"
)

const root = "../.."

// trial is a running cluster of `berth up`, with the processes started for it.
type trial struct {
	*testing.T
	bin, dir string
}

// start starts the cluster. BERTH_BIN names the folder of the binaries; if it is empty, start
// builds them.
func start(t *testing.T) *trial {
	t.Helper()
	c := &trial{T: t, bin: os.Getenv("BERTH_BIN"), dir: t.TempDir()}
	if c.bin == "" {
		c.bin = t.TempDir()
		c.build(root, "./cmd/berth", "berth")
		c.build(filepath.Join(root, "controlplane"), "./cmd/berth-controlplane", "berth-controlplane")
	}
	up := c.run(c.bin+"/berth", "up", "--data-dir", c.dir)
	c.until("berth up is up", func() bool { return strings.Contains(up.String(), "Berth is up") })
	return c
}

func (c *trial) build(module, what, name string) string {
	c.Helper()
	to := filepath.Join(c.TempDir(), name)
	if name == "berth" || name == "berth-controlplane" {
		to = filepath.Join(c.bin, name)
	}
	if out, err := exec.Command("go", "build", "-C", module, "-o", to, what).CombinedOutput(); err != nil {
		c.Fatalf("build %s: %v\n%s", what, err, out)
	}
	return to
}

// run starts a process that ends with the test.
func (c *trial) run(command string, args ...string) *output.Buffer {
	c.Helper()
	out := &output.Buffer{}
	cmd := exec.Command(command, args...)
	cmd.Env = c.env()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				c.Errorf("%s ended with %v:\n%s", filepath.Base(command), err, out)
			}
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			c.Errorf("%s did not end within 30 s of SIGINT", filepath.Base(command))
		}
	})
	return out
}

// scheduler starts a scheduler with the configuration of an example.
func (c *trial) scheduler(command []string, config string) {
	c.Helper()
	args := append(command[1:], "--config", config, "--kubeconfig", filepath.Join(c.dir, "kubeconfig"), "--secure-port", "0")
	c.run(command[0], args...)
}

// env returns an environment without access to the user's cluster and cache.
func (c *trial) env() []string {
	return append(os.Environ(), "HOME="+c.dir, "KUBECONFIG=", "BERTH_DATA_DIR="+c.dir)
}

func (c *trial) kubectl(args ...string) string {
	c.Helper()
	cmd := exec.Command(c.bin+"/berth", append([]string{"kubectl"}, args...)...)
	cmd.Env = c.env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// becomes waits until each pod is on the expected node, or is unschedulable with the expected
// message.
func (c *trial) becomes(pods map[string]string) {
	c.Helper()
	const state = `{.spec.nodeName}{.status.conditions[?(@.reason=="Unschedulable")].message}`
	for pod, want := range pods {
		got := ""
		c.until(pod+" "+want, func() bool {
			got = c.kubectl("get", "pod", pod, "-o", "jsonpath="+state)
			return strings.HasPrefix(got, want) && got != ""
		})
	}
}

// gone waits until the pod no longer exists.
func (c *trial) gone(pod string) {
	c.Helper()
	last := ""
	defer func() {
		if c.Failed() {
			c.Logf("pod %s:\n%s", pod, last)
		}
	}()
	c.until("pod "+pod+" is gone", func() bool {
		last = c.kubectl("get", "pod", pod, "--ignore-not-found", "-o", "yaml")
		return last == ""
	})
}

func (c *trial) until(what string, is func() bool) {
	c.Helper()
	err := wait.PollUntilContextTimeout(c.Context(), 100*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		c.Fatalf("not within a minute: %s", what)
	}
}

// TestTheExamples verifies that the plugin and the extender of examples/, configured as in their
// READMEs, place the example pods as described. Each runs with a separate scheduler on one live
// cluster.
func TestTheExamples(t *testing.T) {
	c := start(t)
	t.Run("plugin", func(t *testing.T) { (&trial{t, c.bin, c.dir}).plugin() })
	t.Run("extender", func(t *testing.T) { (&trial{t, c.bin, c.dir}).extender() })
}

func (c *trial) plugin() {
	c.scheduler([]string{c.build(root, "./examples/plugin", "power-scheduler")}, root+"/examples/plugin/scheduler.yaml")
	c.kubectl("label", "node", "node-1", "node-2", "example.com/rack=r1")
	c.kubectl("label", "node", "node-3", "example.com/rack=r2")
	c.kubectl("apply", "-f", root+"/examples/plugin/pods.yaml")
	c.becomes(map[string]string{
		"oven": "node-", "heater": "node-", "kettle": "0/3 nodes are available: 3 rack(s) had not enough power left.",
	})
	inFirst := func(pod string) bool {
		return c.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}") != "node-3"
	}
	if inFirst("oven") == inFirst("heater") {
		c.Error("one rack has both the oven and the heater")
	}
	c.kubectl("delete", "pod", "oven")
	c.becomes(map[string]string{"kettle": "node-"})

	// A pod of higher priority preempts the pods that use the power of the only suitable rack.
	victim := "heater"
	if inFirst("kettle") {
		victim = "kettle"
	}
	c.apply(`
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
---
apiVersion: v1
kind: Pod
metadata: {name: furnace, annotations: {example.com/watts: "1000"}}
spec: {schedulerName: power-scheduler, priorityClassName: urgent, containers: [{name: c, image: busybox}]}
`)
	c.becomes(map[string]string{"furnace": "node-"})
	c.gone(victim)
}

func (c *trial) extender() {
	server := httptest.NewServer(datasets.Inventory{"genomes": {"node-1": 10, "node-2": 2}, "weather": {"node-3": 7}}.Handler())
	c.Cleanup(server.Close)
	config, err := os.ReadFile(root + "/examples/extender/scheduler.yaml")
	if err != nil {
		c.Fatal(err)
	}
	file := filepath.Join(c.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, bytes.Replace(config, []byte("http://127.0.0.1:8888"), []byte(server.URL), 1), 0o600); err != nil {
		c.Fatal(err)
	}
	c.scheduler([]string{c.bin + "/berth", "scheduler"}, file)
	c.kubectl("apply", "-f", root+"/examples/extender/pods.yaml")
	c.becomes(map[string]string{
		"analysis": "node-1", "forecast": "node-3", "lost": "0/3 nodes are available: 3 node(s) cannot reach dataset atlantis.",
	})
}

func (c *trial) apply(manifest string) {
	c.Helper()
	file := filepath.Join(c.TempDir(), fmt.Sprintf("%d.yaml", len(manifest)))
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		c.Fatal(err)
	}
	c.kubectl("apply", "-f", file)
}
