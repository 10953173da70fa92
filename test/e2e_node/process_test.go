// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2enode

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/berth-k8s/berth/test/internal/output"
)

// process is a berth process that runs in the background of a test.
type process struct {
	argv  []string
	env   []string // in addition to the test's environment
	cmd   *exec.Cmd
	out   printed
	ended chan error
}

func newProcess(argv ...string) *process { return &process{argv: argv} }

// start starts the process, and waits until it prints a line with the given prefix.
func (p *process) start(line string) error {
	from := p.out.len()
	p.cmd = exec.Command(p.argv[0], p.argv[1:]...)
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.ended = make(chan error, 1)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() { p.ended <- p.cmd.Wait() }()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if p.out.has(line, from) {
			return nil
		}
		select {
		case err := <-p.ended:
			p.ended <- err
			return fmt.Errorf("%s ended: %v\n%s", strings.Join(p.argv[:2], " "), err, p.out.tail())
		default:
		}
	}
	return fmt.Errorf("%s did not say %q within %s\n%s", strings.Join(p.argv[:2], " "), line, patience, p.out.tail())
}

// stop sends SIGINT and waits for the end of the process.
func (p *process) stop() error { return p.signal(syscall.SIGINT) }

func (p *process) signal(s syscall.Signal) error {
	if p.cmd == nil || p.cmd.Process == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(s)
	select {
	case err := <-p.ended:
		p.ended <- err
		return err
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		return errors.New("it did not end")
	}
}

// printed is the output of a process so far.
type printed struct{ output.Buffer }

func (o *printed) len() int { return len(o.String()) }

func (o *printed) has(line string, from int) bool {
	return strings.Contains("\n"+o.String()[from:], "\n"+line)
}

func (o *printed) tail() string {
	text := o.String()
	return text[max(0, len(text)-4000):]
}
