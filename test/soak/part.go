// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// part is a component's process. It is started again whenever it ends, as by a kubelet.
type part struct {
	name    string
	journal *journal
	network *network // network between the part and the API server; nil for the control plane
	// excused reports whether an end after this last output is expected, and returns the reason.
	excused func(p *part, words string) (string, bool)
	ended   func(p *part, why string, excused bool) // called for each unrequested end

	mu       sync.Mutex // guards the fields below
	argv     []string
	process  *os.Process
	gone     chan struct{} // closed when the process has ended
	struck   bool          // the end of this process was requested
	downFor  time.Duration // pause before the restart
	asleep   bool
	cut      bool
	troubled time.Time // time at which the last disturbance began or ended
	exit     error     // exit error of the last process
	said     string    // last output of the last ended process
}

// keepRunning runs the part until the context ends.
func (p *part) keepRunning(ctx context.Context) {
	runtime.LockOSThread() // Pdeathsig takes effect when the thread that started the child ends, not only when the process ends
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		p.runOnce(ctx)
		p.mu.Lock()
		pause := p.downFor
		p.downFor = 0
		p.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// runOnce starts a process and waits for its end.
func (p *part) runOnce(ctx context.Context) {
	p.journal.forgetEndpoints()
	fmt.Fprintln(p.journal, started)
	p.mu.Lock()
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	p.mu.Unlock()
	cmd.Stdout, cmd.Stderr = p.journal, p.journal
	// Use a separate process group, because a terminal sends Ctrl-C to the campaign's whole group:
	// the child would end before the campaign, apparently by itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "BERTH_DATA_DIR=")
	gone := make(chan struct{})
	p.mu.Lock()
	err := cmd.Start()
	p.process, p.gone, p.struck, p.asleep, p.troubled = cmd.Process, gone, false, false, time.Now()
	p.mu.Unlock()
	if err == nil {
		err = cmd.Wait()
	}
	if p.network != nil {
		p.network.breakConnections() // unread messages are lost with the process
	}
	text := p.journal.ofThis()
	p.mu.Lock()
	asked := p.struck || ctx.Err() != nil
	p.process, p.troubled, p.exit, p.said = nil, time.Now(), err, text
	if !asked {
		p.downFor = time.Second
	}
	p.mu.Unlock()
	close(gone)
	p.journal.writeNote("ended: %v", err)
	if !asked {
		why := fmt.Sprint(err)
		named, excused := p.excused(p, text)
		if excused {
			why = named
		}
		p.ended(p, why, excused)
	}
}

// killProcess sends SIGKILL; it returns when the process has ended.
func (p *part) killProcess(downFor time.Duration) bool {
	p.mu.Lock()
	process, gone := p.process, p.gone
	if process == nil {
		p.mu.Unlock()
		return false
	}
	p.struck, p.downFor = true, downFor
	p.mu.Unlock()
	_ = process.Kill() // the process may have ended by itself
	<-gone
	return true
}

// stopProcess sends SIGSTOP; wake sends SIGCONT.
func (p *part) stopProcess() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil || p.asleep {
		return false
	}
	p.asleep, p.troubled = true, time.Now()
	return p.process.Signal(syscall.SIGSTOP) == nil
}

func (p *part) wakeProcess() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil && p.asleep {
		_ = p.process.Signal(syscall.SIGCONT) // the process may have been killed
	}
	p.asleep, p.troubled = false, time.Now()
}

// setCut records whether the part is partitioned.
func (p *part) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.troubled = cut, time.Now()
}

// noteTrouble records that the part is disturbed now.
func (p *part) noteTrouble() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.troubled = time.Now()
}

// isWell reports whether the part runs and has been undisturbed for a while.
func (p *part) isWell(now time.Time, forAWhile time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process != nil && !p.asleep && !p.cut && now.Sub(p.troubled) > forAWhile
}

// switchProgram makes the part run the program of that name in another folder from its next start
// on, with the same arguments.
func (p *part) switchProgram(folder string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.argv[0] = filepath.Join(folder, filepath.Base(p.argv[0]))
}

func (p *part) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return 0
	}
	return p.process.Pid
}

// lastWords returns the last output of the last ended process.
func (p *part) lastWords() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said
}

// terminateProcess sends SIGTERM and returns the exit code, or -1 if the process did not end in
// time.
func (p *part) terminateProcess(within time.Duration) (code int, ran bool) {
	p.mu.Lock()
	process, gone := p.process, p.gone
	p.struck = true
	p.mu.Unlock()
	if process == nil {
		return 0, false
	}
	_ = process.Signal(syscall.SIGTERM) // the process may have ended by itself
	select {
	case <-gone:
	case <-time.After(within):
		_ = process.Kill()
		<-gone
		return -1, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == nil {
		return 0, true
	}
	if ended, ok := p.exit.(*exec.ExitError); ok {
		return ended.ExitCode(), true
	}
	return -1, true
}
