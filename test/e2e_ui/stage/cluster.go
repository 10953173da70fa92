// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is a running berth that serves the dashboard.
type Process struct {
	// URL is the address of the dashboard.
	URL   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// startWithin limits the time until the dashboard is available.
const startWithin = 2 * time.Minute

// Run starts berth with the given arguments and waits until the dashboard is available.
func Run(bin string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(filepath.Join(bin, "berth"), args...), ended: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	found := make(chan string, 1)
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(out)
		url := ""
		for lines.Scan() {
			if i := strings.Index(lines.Text(), "ready http"); i >= 0 && !strings.HasPrefix(lines.Text(), "controlplane:") {
				url = strings.TrimSpace(lines.Text()[i+len("ready "):])
			}
			// berth up is ready when it prints "Ctrl-C", and berth ui when it prints the address.
			if url != "" && (args[0] != "up" || strings.Contains(lines.Text(), "Ctrl-C")) && len(found) == 0 {
				found <- url
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = p.cmd.Wait()
	}()
	select {
	case p.URL = <-found:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("berth %s ended", strings.Join(args, " "))
	case <-time.After(startWithin):
		p.Stop()
		return nil, fmt.Errorf("berth %s is not up within %s", strings.Join(args, " "), startWithin)
	}
}

// Stop sends SIGINT, and waits for the end of the process.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		p.Kill()
	}
}

// Kill sends SIGKILL, and waits for the end of the process.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Memory returns the resident memory of the process, in bytes.
func (p *Process) Memory() int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	for line := range strings.Lines(string(status)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}

// Berth runs a command and returns its output.
func Berth(bin string, args ...string) (string, error) {
	out, err := exec.Command(filepath.Join(bin, "berth"), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Kubectl runs the built-in kubectl on the cluster of a data directory.
func Kubectl(bin, dataDir, stdin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, "berth"), append([]string{"kubectl", "--data-dir", dataDir}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
