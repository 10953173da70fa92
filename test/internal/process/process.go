// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package process runs programs for measurements. Each program logs to a file and ends with the
// process that started it. Its resource usage is read from the kernel.
package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a running program.
type Process struct {
	Name string
	// Ended is closed when the process has ended.
	Ended chan struct{}

	log string
	cmd *exec.Cmd
	// took and err are valid after Ended is closed.
	took time.Duration
	err  error
}

// Usage holds the resources used by a process, from its start to its end.
type Usage struct {
	Took, CPU time.Duration
	Peak      int64 // bytes of resident memory
}

// stopLimit is the maximum time from SIGTERM until the end of a process.
const stopLimit = 15 * time.Second

// Start starts a program. Its output is appended to a file.
func Start(path, log string, args ...string) (*Process, error) {
	return start(exec.Command(path, args...), log)
}

// Run runs a program to its end. It writes the program's standard output to out, and its standard
// error to a file. environment is added to this process's environment.
func Run(ctx context.Context, out io.Writer, environment []string, path, log string, args ...string) (Usage, error) {
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Env = out, append(os.Environ(), environment...)
	p, err := start(cmd, log)
	if err != nil {
		return Usage{}, err
	}
	peak, tick := int64(0), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			peak = max(peak, p.Peak()) // the peak of an ended process cannot be read
		case <-ctx.Done():
			p.Kill()
			return Usage{}, ctx.Err()
		case <-p.Ended:
			if p.err != nil {
				err = p.Gone()
			}
			return Usage{Took: p.took, CPU: p.Spent(), Peak: peak}, err
		}
	}
}

func start(cmd *exec.Cmd, log string) (*Process, error) {
	p := &Process{Name: filepath.Base(cmd.Path), Ended: make(chan struct{}), log: log, cmd: cmd}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if cmd.Stdout == nil {
		cmd.Stdout = file
	}
	cmd.Stderr = file
	cmd.SysProcAttr = isolated()
	started := make(chan error)
	go func() {
		defer file.Close()
		// For Pdeathsig, the parent is the thread that starts the child, so this thread must
		// outlive the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		began := time.Now()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err, p.took = cmd.Wait(), time.Since(began)
			close(p.Ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return p, nil
}

// Own returns the CPU time used by this process so far.
func Own() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // cannot happen: the arguments are valid
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Gone returns an error for a process that ended by itself, with its last lines of output.
func (p *Process) Gone() error {
	return fmt.Errorf("%s ended: %w: %s", p.Name, errors.Join(p.err, errors.New("its last lines are")), p.LastLines(3))
}

// Stop stops the process with SIGTERM and returns its usage. It is an error if the process has
// already ended.
func (p *Process) Stop() (Usage, error) {
	select {
	case <-p.Ended:
		return Usage{}, p.Gone()
	default:
	}
	peak, peakErr := peakMemory(p.cmd.Process.Pid)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.Ended:
	case <-time.After(stopLimit):
		p.Kill()
	}
	// The exit code is ignored: kube-scheduler exits with 1 after SIGTERM.
	return Usage{Took: p.took, CPU: p.Spent(), Peak: peak}, peakErr
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends the process a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process immediately.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the process may have ended
	<-p.Ended
}

// LastLines returns the last lines of the log.
func (p *Process) LastLines(n int) []byte {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte(" | "))
}

// WaitFor waits until the log has a line with the prefix, and returns the line.
func (p *Process) WaitFor(ctx context.Context, prefix string) (string, error) {
	for {
		file, err := os.Open(p.log)
		if err != nil {
			return "", err
		}

		for lines := bufio.NewScanner(file); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), prefix) {
				file.Close()
				return lines.Text(), nil
			}
		}

		file.Close()
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-p.Ended:
			return "", p.Gone()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// CPU returns the CPU time used by the running process.
func (p *Process) CPU() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const user, system, perSecond = 11, 12, 100 // fields of proc(5), counted after the name
	ticks := 0
	for _, i := range []int{user, system} {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / perSecond
}

// Peak returns the maximum memory of the running process in bytes.
func (p *Process) Peak() int64 {
	peak, err := peakMemory(p.cmd.Process.Pid)
	if err != nil {
		return 0
	}
	return peak
}

// Resident returns the current memory of the running process in bytes.
func (p *Process) Resident() int64 {
	resident, err := residentMemory(p.cmd.Process.Pid)
	if err != nil {
		return 0
	}
	return resident
}

// Spent returns the CPU time of an ended process.
func (p *Process) Spent() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}
