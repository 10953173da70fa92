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

	"github.com/berth-k8s/berth/controller"
)

// role is what this binary is when a test runs it as a process of its own.
const role = "BERTH_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "controller" {
		if err := runController(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	os.RemoveAll(built)
	os.Exit(code)
}

var built string // the folder of the binary, "" if none was built

// berth is the binary whose kubectl is used, built once.
var berth = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("BERTH_BIN"); dir != "" {
		return filepath.Abs(filepath.Join(dir, "berth"))
	}
	dir, err := os.MkdirTemp("", "berth-e2e-eviction-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "berth")
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", path, "./cmd/berth").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build berth: %w\n%s", err, out)
	}
	return path, nil
})

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

// process is a controller that runs.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	address string
	log     *strings.Builder
	done    chan error
}

// startController runs a controller and returns when it has begun.
func startController(t testing.TB, kubeconfig string, args ...string) *process {
	t.Helper()
	args = append([]string{"--kubeconfig", kubeconfig, "--health-bind-address", "127.0.0.1:0"}, args...)
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), log: &strings.Builder{}, done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), role+"=controller")
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(out, &p.address); err != nil {
		t.Fatalf("controller did not start: %v\n%s", err, p.log)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of the controller:\n%s", p.log)
		}
	})
	return p
}

// kill is kill -9.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
	p.done <- nil
}

// stop is SIGTERM; the process has to end cleanly and soon.
func (p *process) stop() {
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
