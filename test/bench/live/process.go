package live

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is one of the programs that are measured or needed for it. Its output goes to a file of
// its name.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // valid after ended
}

// stopLimit is how long a process may take to end when it is asked to.
const stopLimit = 15 * time.Second

// launch starts a program of the folder with the binaries.
func (b *bench) launch(name string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(b.dir, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(filepath.Join(b.Binaries, name), args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = isolated()
	started := make(chan error)
	go func() {
		// For the kernel the thread that forked is the parent: it must last as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.ended)
		}
		log.Close()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w: build it first, as make bench-live does", name, err)
	}
	return p, nil
}

// gone is the error of a process that ended by itself.
func (p *process) gone() error {
	return fmt.Errorf("%s ended: %w: %s", p.name, errors.Join(p.err, errors.New("its last lines are")), lastLines(p.log, 3))
}

// usage is what a process has taken, from its start to its end.
type usage struct {
	CPU  time.Duration
	Peak int64 // bytes of resident memory
}

// stop ends the process and says what it took.
func (p *process) stop() (usage, error) {
	select {
	case <-p.ended:
		return usage{}, p.gone()
	default:
	}
	peak, peakErr := peakMemory(p.cmd.Process.Pid)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	// How it ended is not looked at: kube-scheduler exits with 1 after SIGTERM.
	state := p.cmd.ProcessState
	return usage{CPU: state.UserTime() + state.SystemTime(), Peak: peak}, peakErr
}

func lastLines(file string, n int) []byte {
	text, err := os.ReadFile(file)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte(" | "))
}
