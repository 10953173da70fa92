package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-k8s/berth/test/kcm"
)

// programs are the paths of what runs.
type programs struct {
	berth, controlplane, upstream string
}

func programsIn(dir string) programs {
	return programs{
		berth:        filepath.Join(dir, "berth"),
		controlplane: filepath.Join(dir, "berth-controlplane"),
		upstream:     filepath.Join(dir, "kube-controller-manager"),
	}
}

func build(dir string) (programs, error) {
	p := programsIn(dir)
	for _, args := range [][]string{
		{"build", "-C", "..", "-o", p.berth, "./cmd/berth"},
		{"build", "-o", p.controlplane, "./cmd/berth-controlplane"},
	} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return p, fmt.Errorf("go %s: %w (run in test/)\n%s", strings.Join(args, " "), err, out)
		}
	}
	var err error
	p.upstream, err = kcm.Build(dir)
	return p, err
}

// process is one that runs, with its log in a file.
type process struct {
	cmd     *exec.Cmd
	log     string
	address string // Berth's endpoints
	ended   chan struct{}
}

func start(path, log string, args ...string) (*process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the process has its own
	p := &process{cmd: exec.Command(path, args...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // it is killed in the end
	}()
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

func (p *process) lastLog() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "")
}

// waitFor waits until the log has a line that begins so, and returns the line.
func (p *process) waitFor(ctx context.Context, prefix string) (string, error) {
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
		case <-p.ended:
			return "", fmt.Errorf("%s ended:\n%s", p.cmd.Path, p.lastLog())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// cpu is what the process has used.
func (p *process) cpu() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const user, system, perSecond = 11, 12, 100 // of proc(5), after the name
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

// peak is the most memory that the process had, in bytes.
func (p *process) peak() int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// profile saves the heap's profile and that of the allocations.
func (p *process) profile(name string) error {
	for _, kind := range []string{"heap", "allocs"} {
		response, err := http.Get("http://" + p.address + "/debug/pprof/" + kind)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		file, err := os.Create(name + "-" + kind + ".pprof")
		if err != nil {
			return err
		}
		if _, err := io.Copy(file, response.Body); err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}
