// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
)

// TB is the part of *testing.T used by Start.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// Start gives a test a private instance. It skips the test, with the reason, if the machine cannot
// run containers at all.
func Start(t TB) *Containerd {
	t.Helper()
	if reason := Impossible(); reason != "" {
		t.Skipf("no containers here: %s", reason)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	if err := Install(ctx); err != nil {
		t.Skipf("no containers here: %v", err)
	}
	sweep()
	// Use a short folder instead of the test's own: socket paths have 107 characters at most.
	dir, err := os.MkdirTemp("", folder)
	if err != nil {
		t.Fatalf("%v", err)
	}
	c, err := Run(ctx, dir)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("containerd's log:\n%s", tail(c.Log(), 4000))
		}
		if err := c.Stop(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return c
}

// Impossible returns why this machine cannot run containers, or "".
func Impossible() string {
	if os.Geteuid() != 0 {
		return "must be root"
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory"} {
		if probe, err := os.MkdirTemp(root, "berth-probe-"); err == nil {
			os.Remove(probe)
			return ""
		}
	}
	return "cgroups at /sys/fs/cgroup cannot be written"
}

const folder = "berth-containerd-"

// sweep removes remains of killed tests' instances whose script was killed as well. It keeps locked
// instances, which are in use.
func sweep() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), folder+"*"))
	for _, dir := range left {
		if _, err := os.Stat(filepath.Join(dir, "name")); err == nil {
			_ = exec.Command("sh", "-c", string(script), "containerd.sh", "clean", dir).Run()
		}
	}
}

func tail(text string, n int) string {
	if len(text) > n {
		return text[len(text)-n:]
	}
	return text
}
