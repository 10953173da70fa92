// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestKilledContainerdComesBackWithItsContainers(t *testing.T) {
	c := startOwn(t)
	run(t, c, "web", "sleep", "600")
	kill(t, c)
	eventually(t, "the container runs", func() error {
		out, err := ctr(c, "tasks", "list")
		if err == nil && !regexp.MustCompile(`(?m)^web +\d+ +RUNNING`).MatchString(out) {
			err = errors.New(out)
		}
		return err
	})
}

// kill kills only containerd, and returns when it has restarted. The file down delays the restart
// until the death has been observed.
func kill(t *testing.T, c *Containerd) {
	t.Helper()
	down := filepath.Join(c.Dir, "down")
	text, err := os.ReadFile(filepath.Join(c.Dir, "containerd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := errors.Join(err, os.WriteFile(down, nil, 0o644), syscall.Kill(pid, syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	responds := func() error {
		conn, err := net.Dial("unix", c.Socket())
		if err == nil {
			conn.Close()
		}
		return err
	}
	eventually(t, "containerd ends", func() error {
		if responds() == nil {
			return errors.New("it responds")
		}
		return nil
	})
	if err := os.Remove(down); err != nil {
		t.Fatal(err)
	}
	eventually(t, "containerd restarts", responds)
}

// TestImagesThatAreRemovedComeBack verifies that removed images are restored. A kubelet on a nearly
// full disk removes unused images, and the sandboxes' image is not in any registry.
func TestImagesThatAreRemovedComeBack(t *testing.T) {
	c := startOwn(t)
	for _, image := range []string{Pause, Busybox} {
		if out, err := ctr(c, "images", "remove", "--sync", image); err != nil {
			t.Fatal(out, err)
		}
	}
	eventually(t, "both images are there", func() error {
		out, err := ctr(c, "images", "list", "-q")
		if err == nil && (!strings.Contains(out, Pause) || !strings.Contains(out, Busybox)) {
			err = errors.New(out)
		}
		return err
	})
}

// TestNothingIsLeftOfAKilledOwner verifies that no process or mount survives a killed test process.
// That process cannot clean up, so its children must do so.
func TestNothingIsLeftOfAKilledOwner(t *testing.T) {
	if os.Getenv("BERTH_TEST_OWNER") != "" {
		c := startOwn(t)
		run(t, c, "web", "sleep", "600")
		// An orphan of the test in the cgroup, and a mount below the folder, as left by a kubelet.
		volume := filepath.Join(c.Dir, "kubelet", "volume with space")
		if err := os.MkdirAll(volume, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", volume, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		fmt.Println("ready", c.Dir, c.CgroupRoot)
		select {}
	}
	if reason := Impossible(); reason != "" {
		t.Skipf("no containers here: %s", reason)
	}
	owner := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	owner.Env = append(os.Environ(), "BERTH_TEST_OWNER=1")
	// The owner also ends with this test. For the kernel, its parent is the thread that starts it,
	// so that thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	owner.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var dir, cgroup string
	lines := bufio.NewScanner(out)
	for dir == "" && lines.Scan() {
		if words := strings.Fields(lines.Text()); len(words) == 3 && words[0] == "ready" {
			dir, cgroup = words[1], words[2]
		} else if strings.Contains(lines.Text(), "SKIP") {
			t.Skipf("the test that was to be killed ran no containers: %s", lines.Text())
		}
	}
	if dir == "" {
		t.Fatal("the owner did not get its containerd")
	}
	if left := leftovers(t, dir, cgroup); len(left) < 4 {
		t.Fatalf("while it runs, there are only %v: the test would see nothing", left)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	eventually(t, "nothing is left", func() error {
		if left := leftovers(t, dir, cgroup); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}

// leftovers finds processes, mounts, cgroups, the bridge, rules of host ports and the folder
// itself.
func leftovers(t *testing.T, dir, cgroup string) (left []string) {
	t.Helper()
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range processes {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), dir) {
			left = append(left, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			left = append(left, line)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup" + cgroup, "/sys/fs/cgroup/*" + cgroup, "/sys/class/net" + cgroup, "/var/lib/cni/results" + cgroup + "-*", dir} {
		found, _ := filepath.Glob(pattern)
		left = append(left, found...)
	}
	for rule := range strings.Lines(natRules()) {
		if strings.Contains(rule, strings.TrimPrefix(cgroup, "/")) {
			left = append(left, rule)
		}
	}
	// The chain leading to all host ports is needed only while there are host ports.
	if rules := natRules(); strings.Contains(rules, "\n:CNI-HOSTPORT-DNAT ") && !strings.Contains(rules, "\n-A CNI-HOSTPORT-DNAT ") {
		left = append(left, "an empty chain CNI-HOSTPORT-DNAT")
	}
	return left
}

// run runs a container below the cgroup root.
func run(t *testing.T, c *Containerd, name string, command ...string) {
	t.Helper()
	args := []string{"run", "--detach", "--runc-root", c.Dir + "/state/runc", "--cgroup", c.CgroupRoot + "/" + name, Busybox, name}
	if out, err := ctr(c, append(args, command...)...); err != nil {
		t.Fatalf("run %s: %v: %s", name, err, out)
	}
}

func ctr(c *Containerd, args ...string) (string, error) {
	out, err := exec.Command("ctr", append([]string{"--address", c.Socket(), "--namespace", "k8s.io"}, args...)...).CombinedOutput()
	return string(out), err
}

// natRules returns the machine's NAT rules; empty if it does not support them.
func natRules() string {
	out, _ := exec.Command("iptables-save", "-t", "nat").Output()
	return string(out)
}

func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("not in time: %s: %v", what, err)
}

// startOwn gives a test a private instance. It skips the test, with the reason, if the machine
// cannot run containers at all.
func startOwn(t *testing.T) *Containerd {
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
			t.Logf("containerd's log:\n%s", readLog(c))
		}
		if err := c.Stop(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return c
}

// readLog returns the end of containerd's log.
func readLog(c *Containerd) string {
	log, _ := os.ReadFile(filepath.Join(c.Dir, "containerd.log"))
	return string(log[max(0, len(log)-4000):])
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
