// Package plane runs berth-controlplane as a process of its own, and makes many objects on it, for
// measurements.
package plane

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/test/internal/process"
)

// Plane is a control plane that runs.
type Plane struct {
	Kubeconfig string
	Client     kubernetes.Interface
	process    *process.Process
}

// Start starts the program, and returns when it is ready. Its data and its log go into the folder.
func Start(ctx context.Context, program, dir string, flags ...string) (*Plane, error) {
	return start(ctx, program, dir, "ready ", flags)
}

// Up is Start for berth up.
func Up(ctx context.Context, berth, dir string, flags ...string) (*Plane, error) {
	return start(ctx, berth, dir, "nodes: ready ", append([]string{"up"}, flags...))
}

// start returns when the program has said that it is ready.
func start(ctx context.Context, program, dir, ready string, flags []string) (*Plane, error) {
	data := filepath.Join(dir, "data")
	server, err := process.Start(program, filepath.Join(dir, "controlplane.log"), append([]string{"--data-dir", data}, flags...)...)
	if err != nil {
		return nil, err
	}
	p := &Plane{Kubeconfig: filepath.Join(data, "kubeconfig"), process: server}
	if err := p.connect(ctx, ready); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func (p *Plane) connect(ctx context.Context, ready string) error {
	if _, err := p.process.WaitFor(ctx, ready); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.ContentType, config.WarningHandler = -1, runtime.ContentTypeProtobuf, rest.NoWarnings{}
	p.Client, err = kubernetes.NewForConfig(config)
	return err
}

// Stop ends it.
func (p *Plane) Stop() { p.process.Kill() }

// writers is how many requests are under way at once.
const writers = 32

// InParallel does something for 0 to n-1, many at a time.
func InParallel(ctx context.Context, n int, do func(i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// Patiently does something, again while a namespace is so new that its service account is missing.
func Patiently(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "service account") {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// schedulerConfig has the defaults, but for the rate of requests, since the default of 50 a second
// would be all that is measured, and for leader election, which would only delay the start.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: %s
  qps: 100000
  burst: 100000
leaderElection:
  leaderElect: false
`

// SchedulerConfig is the configuration of schedulers that are compared.
func SchedulerConfig(kubeconfig string) []byte { return fmt.Appendf(nil, schedulerConfig, kubeconfig) }

// The programs that Build builds.
const (
	Berth         = "berth"
	ControlPlane  = "berth-controlplane"
	KubeScheduler = "kube-scheduler"
)

var sources = map[string][]string{
	Berth:         {"-C", "..", "./cmd/berth"},
	ControlPlane:  {"-C", "../controlplane", "./cmd/berth-controlplane"},
	KubeScheduler: {"k8s.io/kubernetes/cmd/kube-scheduler"},
}

// Build builds programs into a folder, whose path is absolute. It has to be called within the test
// module, as "go run" does.
func Build(dir string, programs ...string) error {
	for _, name := range programs {
		from := sources[name]
		args := slices.Concat([]string{"build"}, from[:len(from)-1], []string{"-o", filepath.Join(dir, name), from[len(from)-1]})
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w (run in test/)\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
