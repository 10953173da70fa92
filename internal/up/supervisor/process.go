// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// process is one run of a part. It ends once; the next run of the part is another process.
type process struct {
	cmd   *exec.Cmd
	tail  *tail
	ready chan struct{} // closed when the part is ready
	ended chan struct{} // closed when the process has ended
	err   error         // valid after ended

	lines    atomic.Int64 // number of lines on standard output until readiness
	lastSaid atomic.Pointer[string]
}

// launchPart starts the part and returns immediately. The result's channel ready is closed when the
// part is ready, and its channel ended when the process has ended. progress, if set, is called with
// each line printed until the part is ready. After an error, no process is running.
func (s *Supervisor) launchPart(part Part, progress func(part, line string)) (*process, error) {
	if part.Prepare != nil {
		if err := part.Prepare(); err != nil {
			return nil, fmt.Errorf("%s: %w", part.Name, err)
		}
	}
	argv := part.Argv()
	p := &process{
		cmd:   exec.Command(argv[0], argv[1:]...),
		tail:  &tail{},
		ready: make(chan struct{}),
		ended: make(chan struct{}),
	}
	// Always keep the last lines, for the message when the part dies.
	p.cmd.Stderr = p.tail
	var log io.WriteCloser
	if !part.OwnLog {
		var err error
		if log, err = openLog(s.logPath(part)); err != nil {
			return nil, fmt.Errorf("%s: %w", part.Name, err)
		}
		p.cmd.Stderr = io.MultiWriter(p.tail, &lossy{out: log, trouble: func(what string) { s.Trouble(part.Name, what) }})
	}
	// Standard output carries progress and readiness, and is not logged.
	p.cmd.Stdout = &lines{each: func(line string) { p.hearLine(part, line, progress) }}
	// A grandchild that keeps the pipes open must not block Wait.
	p.cmd.WaitDelay = time.Second
	isolateProcess(p.cmd)
	if err := spawnProcess(p.cmd); err != nil {
		if log != nil {
			log.Close()
		}
		return nil, fmt.Errorf("%s: %w", part.Name, err)
	}
	alive, end := context.WithCancel(context.Background())
	if part.Await != nil {
		go func() {
			if part.Await(alive) == nil {
				close(p.ready)
			}
		}()
	}
	go func() {
		defer end()
		p.err = p.cmd.Wait()
		// The process has ended; its children must not continue without it.
		killGroup(p.cmd)
		if log != nil {
			log.Close()
		}
		close(p.ended)
	}()
	return p, nil
}

// hearLine processes a line of standard output. Once the part is ready, it drops lines.
func (p *process) hearLine(part Part, line string, progress func(part, line string)) {
	if p.wasReady() {
		return
	}
	p.lastSaid.Store(&line)
	p.lines.Add(1)
	if progress != nil {
		progress(part.Name, line)
	}

	isReady := strings.HasPrefix(line, "ready")
	switch {
	case part.Await != nil:
		return
	case part.Ready != nil:
		isReady = part.Ready(line)
	}

	if isReady {
		close(p.ready)
	}
}

// wasReady reports whether the part has ever been ready in this run.
func (p *process) wasReady() bool {
	select {
	case <-p.ready:
		return true
	default:
		return false
	}
}

// stopProcess sends SIGTERM. If the process has not ended within the limit, it kills the process
// and its descendants.
func (p *process) stopProcess(within time.Duration) {
	// Signal only the part itself: it ends its own children in order.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(within):
		killGroup(p.cmd)
		<-p.ended
	}
}

// describeEnd describes the end of the process, with its last line.
func (p *process) describeEnd() string {
	how := "ended"
	if p.err != nil {
		how = "ended with " + p.err.Error()
	}
	if last := p.tail.lastLine(); last != "" {
		how += ": " + last
	}
	return how
}

// lossy writes to a log, and drops data that cannot be written. A failed write, for example on a
// full disk, is not returned as an error, because that would end the copying and close the pipe of
// a healthy process. lossy reports the first loss and the end of the losses.
type lossy struct {
	out     io.Writer
	trouble func(what string)
	lost    int64 // bytes lost since the last successful write
}

// Write never returns an error, and always consumes b.
func (l *lossy) Write(b []byte) (int, error) {
	n, err := l.out.Write(b)
	switch {
	case err != nil:
		if l.lost == 0 {
			l.trouble(fmt.Sprintf("its log cannot be written and has gaps from here on: %v", err))
		}
		l.lost += int64(len(b) - n)
	case l.lost > 0:
		l.trouble(fmt.Sprintf("its log is written again; %d bytes are missing", l.lost))
		l.lost = 0
	}
	return len(b), nil
}

// maxLog is the size above which a log is renamed at a start, so that years of use do not fill a
// disk.
const maxLog = 10 << 20

// openLog opens a log for appending, which preserves a part's output from before a restart.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// tail remembers the end of its input.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailSize is enough for a few long lines.
const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

// lastLine returns the last non-empty line.
func (t *tail) lastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.text))
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// lines splits its input into lines. exec.Cmd writes from one goroutine.
type lines struct {
	each func(string)
	rest []byte
}

// Write keeps an incomplete line for the next call.
func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		l.rest = rest
		l.each(strings.TrimRight(string(line), "\r"))
	}
}
