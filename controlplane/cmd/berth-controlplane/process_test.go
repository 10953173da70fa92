// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	binary = flag.String("binary", "", "the berth-controlplane to test, in place of the one compiled into the test")
	kills  = flag.Int("kills", 3, "how often TestKilledAtAnyMomentNothingAcknowledgedIsLost kills")
)

// asProgram makes the test's own binary run as berth-controlplane.
const asProgram = "BERTH_TEST_RUN_AS_CONTROLPLANE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// patience allows for a busy machine.
const patience = time.Minute

// process is a berth-controlplane under test.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer  // read only after ended is closed
	ready  chan struct{} // closed after the line beginning with "ready "
	ended  chan struct{}

	mu     sync.Mutex
	stdout []string
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{ready: make(chan struct{}), ended: make(chan struct{})}
	if *binary != "" {
		p.cmd = exec.Command(*binary, args...)
	} else {
		p.cmd = exec.Command(os.Args[0], args...)
		p.cmd.Env = append(os.Environ(), asProgram+"=1")
	}
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(bufio.NewScanner(stdout))
	t.Cleanup(p.kill)
	return p
}

func (p *process) read(lines *bufio.Scanner) {
	defer close(p.ended)
	for lines.Scan() {
		p.mu.Lock()
		p.stdout = append(p.stdout, lines.Text())
		p.mu.Unlock()
		if strings.HasPrefix(lines.Text(), "ready ") {
			close(p.ready)
		}
	}
	_ = p.cmd.Wait() // ProcessState holds the outcome
}

// kill sends SIGKILL and waits until the process has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (p *process) waitReady(t *testing.T) {
	t.Helper()
	select {
	case <-p.ready:
	case <-p.ended:
		t.Fatalf("ended with %v before it was ready: %s", p.cmd.ProcessState, p.stderr.String())
	case <-time.After(patience):
		t.Fatalf("not ready after %v", patience)
	}
}

// waitEnd returns the exit code.
func (p *process) waitEnd(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("not ended after %v", patience)
		return -1
	}
}

func (p *process) terminate(t *testing.T, signal syscall.Signal) (code int, took time.Duration) {
	t.Helper()
	began := time.Now()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	return p.waitEnd(t), time.Since(began)
}

func client(t *testing.T, dataDir string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// eventually retries until f returns nil.
func eventually(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for complaint := error(nil); ; {
		err := f(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			complaint = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("after %v still: %v", patience, complaint)
		}
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// children returns the child processes of pid.
func children(t *testing.T, pid int) []string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, stat := range stats {
		content, err := os.ReadFile(stat)
		if err != nil {
			continue // the process ended meanwhile
		}
		// The format is: pid (name) state parent …; the name may contain any characters and ends at
		// the last parenthesis.
		rest := string(content[bytes.LastIndexByte(content, ')')+1:])
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == fmt.Sprint(pid) {
			found = append(found, string(content))
		}
	}
	return found
}
