// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Options selects the measurements.
type Options struct {
	Nodes      int
	Pods       int      // number of pending pods in each mode except preemption
	Preemptors int      // number of pending pods in the preemption mode
	Modes      []string // names; empty for all modes except the modes with 10,000 apps
	Latency    int      // number of pods created one at a time; 0 skips this measurement
	Startup    int      // if not 0, Run only measures the startup of this number of pods, while Pods other pods run
	Gang       int      // if not 0, Run only measures gangs of this size, each of which must be placed in one rack
	GangRounds int      // number of consecutive gangs per scheduler
	Schedulers []driver.Scheduler
	Shadow     bool     // run Berth as a shadow, which compares each scheduler's choices with the best choices
	Berth      []string // command of Berth's scheduler; empty: the command used by berth up
}

// bench is a run on a cluster.
type bench struct {
	Options
	*driver.Cluster
	report *Report
}

// Run performs the measurements in the run's folder, which it empties first. After an error it
// returns partial results.
func Run(ctx context.Context, r *driver.Run, o Options) (report *Report, err error) {
	report = &Report{Nodes: o.Nodes, Began: time.Now(), Load: process.LoadAverage()}
	defer func() { report.Took = time.Since(report.Began) }()
	if err := errors.Join(os.RemoveAll(r.Dir), os.MkdirAll(r.Dir, 0o700)); err != nil {
		return report, err
	}

	r.Printf("starting etcd and the API server")
	var flags []string
	if o.Gang > 0 {
		flags = []string{"--feature-gates", gangGates, "--runtime-config", "scheduling.k8s.io/v1beta1=true"}
	}
	cluster, err := r.StartUpstream(ctx, flags...)
	if err != nil {
		return report, err
	}
	defer cluster.Stop()

	b := &bench{Options: o, Cluster: cluster, report: report}
	for i := range b.Schedulers {
		if s := &b.Schedulers[i]; s.Key == "berth" {
			s.Command = b.berthCommand()
		}
	}
	switch {
	case o.Startup > 0:
		return report, (&startups{b}).measureStartups(ctx)
	case o.Gang > 0:
		return report, (&gangs{b, racks{o.Nodes, o.Gang}}).measureGangs(ctx)
	}
	return report, b.measureAll(ctx)
}

// measureAll measures the rate of bindings without decisions, the latency and the modes.
func (b *bench) measureAll(ctx context.Context) error {
	if err := b.registerNodes(ctx, func(int) map[string]string { return nil }); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	if err := b.measureCeiling(ctx); err != nil {
		return fmt.Errorf("bindings alone: %w", err)
	}
	if b.Latency > 0 {
		if err := b.measureLatencies(ctx); err != nil {
			return fmt.Errorf("latency: %w", err)
		}
	}

	for i := range Modes {
		m := &Modes[i]
		if len(b.Modes) == 0 && !m.byName || slices.Contains(b.Modes, m.Name) {
			if err := b.measureMode(ctx, m); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
		}
	}
	return nil
}

// registerNodes creates the priority class, and the nodes with the status of healthy kubelets.
func (b *bench) registerNodes(ctx context.Context, labels func(i int) map[string]string) error {
	b.Printf("registering %s nodes", driver.Thousands(b.Nodes))
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: highClass}, Value: 1000}
	if _, err := b.Client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	return b.CreateNodes(ctx, b.Nodes, func(i int) *v1.Node { return newNode(i, labels(i)) })
}

// berthCommand returns the command measured as Berth. Without Options.Berth it is the same as for
// berth up: berth-scheduler if it was built, or else berth scheduler.
func (b *bench) berthCommand() []string {
	const alone = "berth-scheduler"
	if len(b.Berth) > 0 {
		return b.Berth
	}
	if _, err := os.Stat(b.Path(alone)); err == nil {
		return []string{alone}
	}
	return []string{driver.Berth, "scheduler"}
}

// startPlain starts a scheduler that serves no HTTP endpoints.
func (b *bench) startPlain(s *driver.Scheduler) (*process.Process, error) {
	return b.StartScheduler(s, "--secure-port", "0")
}
