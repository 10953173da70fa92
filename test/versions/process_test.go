// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// process is a running program. Its output is written to a log file with its name.
type process struct {
	c     *cluster
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
}

// begin starts a program. It runs until it is stopped or the cluster ends.
func (c *cluster) begin(name, program string, args ...string) *process {
	c.Helper()
	p := &process{c: c, name: name, log: filepath.Join(c.dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		c.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = log, log, c.environment()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState has the result
		close(p.ended)
	}()
	*c.processes = append(*c.processes, p)
	return p
}

// says waits until the process's output matches a pattern, and returns the pattern's last group.
func (p *process) says(pattern string) string {
	p.c.Helper()
	expression := regexp.MustCompile(pattern)
	var found []string
	p.c.eventually(func() error {
		text := p.said()
		if found = expression.FindStringSubmatch(text); found == nil {
			select {
			case <-p.ended:
				return fatal{fmt.Errorf("%s has ended, and not said %q:\n%s", p.name, pattern, last(text, 20))}
			default:
			}
			return fmt.Errorf("%s has not said %q:\n%s", p.name, pattern, last(text, 20))
		}
		return nil
	})
	return found[len(found)-1]
}

func (p *process) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// stopLimit is the maximum time from SIGTERM until the end of a process.
const stopLimit = 30 * time.Second

// stop sends SIGTERM, waits for the end of the process, and returns its exit code, or -1 if a
// signal ended it. After stopLimit it kills the process.
func (p *process) stop() int {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-p.ended:
	case <-time.After(stopLimit):
		p.kill()
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill sends SIGKILL and waits for the end of the process.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

func last(text string, lines int) string {
	all := strings.SplitAfter(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}
