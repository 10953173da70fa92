// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/test/internal/output"
)

// cluster is a running `berth up`.
type cluster struct {
	dir    string
	cmd    *exec.Cmd
	out    *printed
	ended  chan error
	client kubernetes.Interface
	// objects reads objects of the cluster; it is set only for the shared cluster.
	objects *objects
}

const startWithin = 60 * time.Second

// patience limits the wait for operations that take a moment on an idle machine.
const patience = time.Minute

// launch starts `berth up` and waits until it prints that Berth is up.
func launch(dir string, flags ...string) (*cluster, error) {
	c := begin(dir, flags...)
	if err := c.out.awaitLine("Berth is up", c.ended); err != nil {
		c.stop()
		return nil, err
	}
	var err error
	c.client, err = client(dir)
	return c, err
}

// begin starts `berth up` and returns immediately.
func begin(dir string, flags ...string) *cluster {
	c := &cluster{dir: dir, out: &printed{}, ended: make(chan error, 1)}
	c.cmd = exec.Command(filepath.Join(bin, "berth"), append([]string{"up", "--data-dir", dir}, flags...)...)
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	// In a separate process group, Ctrl-C in the terminal reaches only the test, which then stops
	// the cluster.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		c.ended <- err
		return c
	}
	go func() { c.ended <- c.cmd.Wait() }()
	return c
}

func start(t *testing.T, dir string, flags ...string) *cluster {
	t.Helper()
	c, err := launch(dir, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.stop() })
	return c
}

// stop sends SIGINT to `berth up` and waits for its end.
func (c *cluster) stop() error {
	if c.cmd.Process == nil {
		return nil
	}
	_ = c.cmd.Process.Signal(os.Interrupt)
	select {
	case err := <-c.ended:
		c.ended <- err
		return err
	case <-time.After(30 * time.Second):
		_ = c.cmd.Process.Kill()
		return errors.New("berth up did not end within 30 s of SIGINT")
	}
}

// child returns the PID of the descendant of `berth up` whose command line contains word.
func (c *cluster) child(t *testing.T, word string) int {
	t.Helper()
	pid := c.findChild(word)
	if pid == 0 {
		t.Fatalf("no child process %q of berth up", word)
	}
	return pid
}

// findChild returns 0 if no such process runs.
func (c *cluster) findChild(word string) int {
	for _, pid := range descendants(c.cmd.Process.Pid) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(line, []byte(word)) {
			return pid
		}
	}
	return 0
}

// descendants returns the PIDs of all descendants of a process.
func descendants(pid int) []int {
	var all []int
	dirs, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range dirs {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// pid (name) state ppid; the name may contain anything.
		rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if ppid, _ := strconv.Atoi(rest[1]); ppid == pid {
			child, _ := strconv.Atoi(strings.Fields(string(stat))[0])
			all = append(append(all, child), descendants(child)...)
		}
	}
	return all
}

// running reports whether a process has not ended. A zombie has ended.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0] != "Z"
}

// printed is the output of a process so far.
type printed struct{ output.Buffer }

func (o *printed) awaitLine(text string, ended <-chan error) error {
	return poll(startWithin, func() error {
		if strings.Contains(o.String(), text) {
			return nil
		}
		if len(ended) > 0 {
			return fatal{fmt.Errorf("ended without %q:\n%s", text, o)}
		}
		return fmt.Errorf("no %q in:\n%s", text, o)
	})
}

// fatal is an error that ends a poll immediately.
type fatal struct{ error }

// poll calls ask until ask returns nil. After the timeout, or on a fatal error, poll returns the
// last error of ask.
func poll(within time.Duration, ask func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, within, true, func(context.Context) (bool, error) {
		last = ask()
		if stop, ok := last.(fatal); ok {
			return false, stop
		}
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

func eventually(t *testing.T, within time.Duration, ask func() error) {
	t.Helper()
	if err := poll(within, ask); err != nil {
		t.Fatalf("not within %s: %v", within, err)
	}
}
