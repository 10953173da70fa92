// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/test/internal/process"
)

// Run is one run of a bench, with its folder, programs and progress messages.
type Run struct {
	Bin string // folder with the programs; empty until Open builds them
	Dir string // folder for data and logs; empty until Open creates a temporary folder

	Progress io.Writer // nil for standard error
	Began    time.Time // set by Open
}

// Main parses the flags, runs the bench until it is interrupted, and ends the process.
func Main(name, usage string, run func(ctx context.Context) error) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: go run ./cmd/%s\n\n%s\n\n", name, usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		stop()
		os.Exit(1)
	}
}

// Names splits a comma-separated list and checks each name. It returns nil for an empty list.
func Names(flag, list string, known ...string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: no %q; there are %s", flag, name, strings.Join(known, ", "))
		}
	}
	return names, nil
}

// Chosen reports whether a name is in a list; an empty list contains all.
func Chosen(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }

// Open creates the folder Dir. It builds the programs into Dir unless Bin is set. The returned
// function removes Dir if Open chose it.
func (r *Run) Open(programs ...string) (remove func(), err error) {
	r.Began = time.Now()
	remove = func() {}
	if r.Dir == "" {
		if r.Dir, err = os.MkdirTemp("", "berth-bench-"); err != nil {
			return remove, err
		}
		remove = func() { _ = os.RemoveAll(r.Dir) }
	}

	if r.Dir, err = filepath.Abs(r.Dir); err != nil {
		return remove, err
	}
	if err := r.MakeDir(); err != nil {
		return remove, err
	}

	if r.Bin == "" {
		r.Printf("building what runs")
		r.Bin = r.Dir
		return remove, buildPrograms(r.Bin, programs)
	}
	r.Bin, err = filepath.Abs(r.Bin) // with a relative path, exec could search PATH
	return remove, err
}

// MakeDir creates the folder if necessary.
func (r *Run) MakeDir() error { return os.MkdirAll(r.Dir, 0o700) }

// Printf prints a progress message.
func (r *Run) Printf(format string, args ...any) {
	var out io.Writer = os.Stderr
	if r.Progress != nil {
		out = r.Progress
	}
	fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(r.Began).Seconds(), fmt.Sprintf(format, args...))
}

// Path returns the path of a program.
func (r *Run) Path(program string) string { return filepath.Join(r.Bin, program) }

// Launch starts a program that writes its output to a log file in the folder.
func (r *Run) Launch(program, log string, args ...string) (*process.Process, error) {
	p, err := process.Start(r.Path(program), filepath.Join(r.Dir, log+".log"), args...)
	if err != nil {
		return nil, fmt.Errorf("%w: is %s built?", err, program)
	}
	return p, nil
}

// Ask runs a program to its end. It appends the program's standard output to the file log.out and
// its standard error to log.log, where log is the parameter.
func (r *Run) Ask(ctx context.Context, environment []string, program, log string, args ...string) (u process.Usage, err error) {
	out, err := os.OpenFile(filepath.Join(r.Dir, log+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return u, err
	}
	u, err = process.Run(ctx, out, environment, r.Path(program), filepath.Join(r.Dir, log+".log"), args...)
	return u, errors.Join(err, out.Close())
}

// Programs built by Open.
const (
	Berth             = "berth"
	ControlPlane      = "berth-controlplane"
	KubeScheduler     = "kube-scheduler"
	ControllerManager = "kube-controller-manager"
)

var sources = map[string][]string{
	Berth:             {"-C", "..", "./cmd/berth"},
	ControlPlane:      {"-C", "../controlplane", "./cmd/berth-controlplane"},
	KubeScheduler:     {"k8s.io/kubernetes/cmd/kube-scheduler"},
	ControllerManager: {"k8s.io/kubernetes/cmd/kube-controller-manager"},
}

// buildPrograms builds programs into a folder given by an absolute path. The working folder must be
// in the test module.
func buildPrograms(dir string, programs []string) error {
	for _, name := range programs {
		from := sources[name]
		args := slices.Concat([]string{"build"}, from[:len(from)-1], []string{"-o", filepath.Join(dir, name), from[len(from)-1]})
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w (run in test/)\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
