// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	drainTimeout = 40 * time.Second // --timeout
	// drainEnds is the time within which a drain ends after its timeout or an interrupt, whatever
	// the responses are.
	drainEnds = 90 * time.Second
)

// drains runs one `berth drain` after the other, behind the network of a part that has no process
// of its own.
type drains struct {
	c          *campaign
	part       *part
	kubeconfig string
}

// runDrains drains nodes until the context ends. Every third drain is interrupted.
func (d *drains) runDrains(ctx context.Context) {
	runtime.LockOSThread() // for Pdeathsig; see part.keepRunning
	defer runtime.UnlockOSThread()
	for number := 0; ctx.Err() == nil; number++ {
		node := d.c.churn.randomNode()
		arguments := []string{"--timeout", drainTimeout.String()}
		for _, p := range d.c.parts {
			if address := p.journal.endpointAddress(); p.kindName() == "scheduler" && address != "" {
				arguments = append(arguments, "--scheduler-url", address)
			}
		}
		if number%2 == 0 {
			arguments = append(arguments, "--surge")
		}
		interrupt := time.Hour
		if number%3 == 2 {
			interrupt = drainTimeout / 4
		}
		d.drainNode(ctx, node, interrupt, arguments...)
		if err := d.c.churn.cordonNode(context.WithoutCancel(ctx), node, false); err != nil {
			d.part.journal.writeNote("uncordon: %v", err)
		}
		sleepFor(ctx, time.Second)
	}
}

// drainNode drains a node, and verifies that the drain ends in time.
func (d *drains) drainNode(ctx context.Context, node string, interrupt time.Duration, arguments ...string) {
	c := d.c
	cmd := exec.Command(filepath.Join(c.Bin, "berth"), append([]string{"drain", node, "--kubeconfig", d.kubeconfig, "--ignore-daemonsets",
		"--force", "--allow-pending", "--delete-emptydir-data"}, arguments...)...)
	cmd.Stdout, cmd.Stderr = d.part.journal, d.part.journal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "BERTH_DATA_DIR=")
	d.part.journal.writeNote("%s", strings.Join(cmd.Args[1:], " "))
	began := time.Now()
	if err := cmd.Start(); err != nil {
		c.addViolation(noPanic, fmt.Sprintf("berth drain does not start: %v", err))
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	limit := time.After(drainTimeout + drainEnds)
	interrupted := time.After(interrupt)
	over := ctx.Done()
	var err error
	for waits := true; waits; {
		select {
		case err = <-ended:
			waits = false
		case <-interrupted:
			_ = cmd.Process.Signal(syscall.SIGINT) // the process may have ended
		case <-over:
			over, interrupted = nil, time.After(0) // faults are over
		case <-limit:
			c.addViolation(waitsEnd, fmt.Sprintf("berth drain %s has not ended after %s", node, time.Since(began).Round(time.Second)),
				d.part.name)
			_ = cmd.Process.Kill()
		}
	}
	d.part.journal.writeNote("ended after %s: %v", time.Since(began).Round(time.Second), err)
	c.observer.checks.addOne(waitsEnd)
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	c.ends.addOne(fmt.Sprintf("drain: exit code %d", code))
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		for _, what := range c.sizes.noteSize(d.part.name, cmd.Process.Pid, size{memory: usage.Maxrss << 10}) {
			c.addViolation(bounded, what, d.part.name)
		}
	}
}
