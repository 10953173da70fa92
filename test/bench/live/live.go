package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/test/internal/process"
)

// Options say what is measured.
type Options struct {
	// Binaries is the folder with etcd, kube-apiserver, kube-scheduler and berth.
	Binaries string
	// Dir is where etcd keeps its data and everybody's log goes; emptied first.
	Dir string

	Nodes      int
	Pods       int      // pending in each mode but preemption
	Preemptors int      // pending in preemption mode
	Modes      []string // names; none: all but those with 10,000 apps
	Latency    int      // pods created one at a time; 0 to leave it out
	Startup    int      // in place of all else: pods whose startup is measured once Pods run; 0 to leave it out
	Gang       int      // in place of all else: pods of a gang that has to be in one rack; 0 to leave it out
	GangRounds int      // gangs of each scheduler, one after another
	Schedulers []string // names of Contenders; none: both
	Shadow     bool     // Berth looks on while each scheduler works, and compares its choices with the best
	Berth      []string // the command that is Berth's scheduler, in Binaries; none: what berth up would run

	Progress io.Writer
}

// bench is a run.
type bench struct {
	Options
	dir        string
	kubeconfig string
	client     kubernetes.Interface
	servers    []*process.Process // etcd, then the API server
	began      time.Time
	report     *Report
}

// Run measures and returns what is known, also where it ends early with an error.
func Run(ctx context.Context, o Options) (*Report, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	if len(o.Berth) == 0 {
		o.Berth = berthScheduler(o.Binaries)
	}
	b := &bench{Options: o, dir: dir, began: time.Now(), report: &Report{Nodes: o.Nodes, Began: time.Now(), Load: process.LoadAverage()}}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return b.report, err
	}
	defer b.stopServers()
	err = b.runBench(ctx)
	b.report.Took = time.Since(b.began)
	return b.report, err
}

func (b *bench) runBench(ctx context.Context) error {
	b.printProgress("starting etcd and the API server")
	if err := b.startAPI(ctx); err != nil {
		return err
	}
	if b.Startup > 0 {
		return b.measureStartups(ctx)
	}
	if b.Gang > 0 {
		return b.measureGangs(ctx)
	}

	b.printProgress("registering %s nodes", formatThousands(b.Nodes))
	if err := b.registerNodes(ctx); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	if err := b.measureCeiling(ctx); err != nil {
		return fmt.Errorf("bindings alone: %w", err)
	}
	if err := b.measureLatencies(ctx); err != nil {
		return fmt.Errorf("latency: %w", err)
	}

	for _, m := range b.chosenModes() {
		if err := b.measureMode(ctx, m); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return nil
}

// chosenModes are the chosen ones.
func (b *bench) chosenModes() (modes []*Mode) {
	for i := range Modes {
		if len(b.Modes) == 0 && !Modes[i].byName || slices.Contains(b.Modes, Modes[i].Name) {
			modes = append(modes, &Modes[i])
		}
	}
	return modes
}

// printProgress reports progress.
func (b *bench) printProgress(format string, args ...any) {
	fmt.Fprintf(b.Progress, "%6.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}
