// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/binaries"
)

// TestHelm verifies the life cycle of the chart with the helm command and a release's archive:
// installation alongside kube-scheduler, upgrade to replace kube-scheduler, failed upgrade,
// rollback, and removal. Each time helm waits until the pods are ready, on simulated nodes.
func TestHelm(t *testing.T) {
	t.Parallel()
	version, err := exec.Command(filepath.Join(bin, driver.ControlPlane), "--version").CombinedOutput()
	if got, want := strings.TrimSpace(string(version)), "Kubernetes "+binaries.Kubernetes; err != nil || got != want {
		t.Errorf("the control plane is %q (%v), want %q", got, err, want)
	}
	helm, err := binaries.Helm("../..")
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	berthUp(t, filepath.Join(work, ".berth"))
	c := &cluster{T: t, Kubeconfig: filepath.Join(work, ".berth/kubeconfig")}
	c.kubectl("label", "node", "--all", "node-role.kubernetes.io/control-plane=")
	before := c.everything()

	run := func(args ...string) (string, error) {
		cmd := exec.Command(helm, append(args, "--kubeconfig", c.Kubeconfig, "--namespace", deploy.Namespace)...)
		cmd.Env = []string{"HOME=" + work}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := run(args...)
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	archive, err := binaries.Chart("../..", "v0.0.1", work)
	if err != nil {
		t.Fatal(err)
	}
	do("install", "berth", archive, "--create-namespace", "--wait", "--timeout", "90s", "--set", "ui.enabled=true")
	if got, want := c.ready(), "berth-scheduler=2/2 berth-ui=1/1"; got != want {
		t.Errorf("installed: %s, want %s", got, want)
	}

	do("upgrade", "berth", archive, "--wait", "--timeout", "90s", "--set", "mode=replace-default,scheduler.replicas=3")
	if got, want := c.ready(), "berth-controller=2/2 berth-scheduler=3/3"; got != want {
		t.Errorf("upgraded: %s, want %s", got, want)
	}

	// The chart's schema rejects an unknown value, and nothing changes.
	if out, err := run("upgrade", "berth", archive, "--set", "mode=replace"); err == nil || !strings.Contains(out, "mode") {
		t.Errorf("upgraded to a mode that does not exist: %v\n%s", err, out)
	}
	// If the pods fit on no node, helm reports an error, and rolls back on request.
	if out, err := run("upgrade", "berth", archive, "--rollback-on-failure", "--timeout", "6s", "--set", "mode=replace-default,scheduler.replicas=3",
		"--set", "scheduler.resources.requests.cpu=1000"); err == nil {
		t.Errorf("pods of 1,000 CPUs were rolled out:\n%s", out)
	}
	eventually(t, func() error {
		if got, want := c.ready(), "berth-controller=2/2 berth-scheduler=3/3"; got != want {
			return fmt.Errorf("after a failed upgrade: %s, want %s", got, want)
		}
		return nil
	})

	do("rollback", "berth", "1", "--wait", "--timeout", "90s")
	eventually(t, func() error {
		if got, want := c.ready(), "berth-scheduler=2/2 berth-ui=1/1"; got != want {
			return fmt.Errorf("rolled back: %s, want %s", got, want)
		}
		return nil
	})

	do("uninstall", "berth", "--wait", "--timeout", "90s")
	eventually(t, func() error {
		if left := strings.TrimSpace(strings.ReplaceAll(c.everything(), before, "")); left != "" {
			return fmt.Errorf("left after uninstalling: %s", left)
		}
		return nil
	})
}

// ready lists Berth's Deployments with their ready and desired replicas.
func (c *cluster) ready() string {
	c.Helper()
	return strings.TrimSpace(c.kubectl("get", "deployments", "--namespace", deploy.Namespace, "--sort-by=.metadata.name",
		"-o", `jsonpath={range .items[*]}{.metadata.name}={.status.readyReplicas}/{.spec.replicas} {end}`))
}
