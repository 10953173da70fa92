// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller"
	"github.com/berth-k8s/berth/test/internal/binaries"
)

// role is the environment variable for the role of this binary when a test runs it as a separate
// process.
const role = "BERTH_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "controller" {
		if err := runController(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	// These tests wait more than they compute, so more of them run in parallel than there are
	// processors.
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	code := m.Run()
	for _, dir := range temporary {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

var temporary []string // folders with built binaries

// bin builds berth, whose kubectl is used, and berth-controlplane once, and returns their folder.
var bin = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "berth-e2e-eviction-")
	if err != nil {
		return "", err
	}
	temporary = append(temporary, dir)
	return binaries.BuildIn(dir, "../..")
})

// program returns the path of a program.
func program(t testing.TB, name string) string {
	t.Helper()
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

func runController(args []string) error {
	options := controller.DefaultOptions()
	flags := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "")
	options.AddFlags(flags)
	verbose := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(verbose)
	if err := verbose.Set("v", "2"); err != nil {
		return err
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	c, err := controller.New(config, options)
	if err != nil {
		return err
	}
	fmt.Println(c.Address())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return c.Run(ctx)
}

// child is a running program: a controller, or a scheduler.
type child struct {
	t       testing.TB
	cmd     *exec.Cmd
	address string // address of the process's endpoints, if printed
	log     *strings.Builder
	done    chan error
}

func newChild(t testing.TB, cmd *exec.Cmd) *child {
	p := &child{t: t, cmd: cmd, log: &strings.Builder{}, done: make(chan error, 1)}
	p.cmd.Stderr = p.log
	return p
}

// start starts the program, which is killed at the end of the test.
func (p *child) start() {
	p.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		p.kill()
		if p.t.Failed() {
			p.t.Logf("log of %s:\n%s", p.cmd.Path, lastLines(p.log.String(), 200))
		}
	})
	go func() { p.done <- p.cmd.Wait() }()
}

func lastLines(text string, most int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// startController starts a controller and waits until it has printed its address.
func startController(t testing.TB, kubeconfig string, args ...string) *child {
	t.Helper()
	args = append([]string{"--kubeconfig", kubeconfig, "--health-bind-address", "127.0.0.1:0"}, args...)
	p := newChild(t, exec.Command(os.Args[0], args...))
	p.cmd.Env = append(os.Environ(), role+"=controller")
	out, in, err := os.Pipe() // not StdoutPipe, because Wait would close the pipe while it is read
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = in
	p.start()
	in.Close()
	defer out.Close()
	if _, err := fmt.Fscanln(out, &p.address); err != nil {
		t.Fatalf("controller did not start: %v", err)
	}
	return p
}

// kill sends SIGKILL and waits for the end of the process.
func (p *child) kill() {
	p.cmd.Process.Kill()
	<-p.done
	p.done <- nil
}

// stop sends SIGTERM, and requires that the process exits with code 0 within ten seconds.
func (p *child) stop() {
	p.t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.done:
		p.done <- nil
		if err != nil {
			p.t.Errorf("ended by SIGTERM with %v\n%s", err, p.log)
		}
	case <-time.After(10 * time.Second):
		p.t.Error("still running 10 s after SIGTERM")
	}
}
