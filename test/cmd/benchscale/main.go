// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Benchscale measures `berth scheduler` with up to a million nodes, against an API server without
// storage (stubapi): the time until it has read the cluster, its memory, the cost of heartbeats,
// the pods that it binds per second, and a restart after it was killed. With -controller, it
// measures the detection of silent nodes by `berth controller` instead. `make bench-scale` builds
// and runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

func main() {
	r, o := &driver.Run{}, options{}
	flag.StringVar(&r.Bin, "bin", "bin", "folder with berth and stubapi")
	flag.StringVar(&r.Dir, "dir", "", "folder for the logs, emptied first (default: a temporary one, removed at the end)")
	flag.IntVar(&o.nodes, "nodes", 10_000, "nodes")
	flag.IntVar(&o.pods, "pods", 20_000, "pods of each step")
	flag.Float64Var(&o.rate, "rate", 5000, "pods created per second")
	flag.Float64Var(&o.heartbeats, "heartbeats", 25_000, "updates of nodes per second without a change, in the step that measures them")
	flag.DurationVar(&o.rest, "rest", 40*time.Second, "rest before the memory at rest is read")
	flag.IntVar(&o.questions, "questions", 0, "measure only berth serve, with this many questions per second while 100 pods per second are scheduled")
	flag.BoolVar(&o.controller, "controller", false, "measure only berth controller: kubelets renew their Leases, and then 1 % of the nodes fall silent")
	flag.DurationVar(&o.asking, "asking", 30*time.Second, "duration of each step with questions")
	driver.Main("benchscale", "make bench-scale builds what it runs.", func(ctx context.Context) error { return run(ctx, r, o) })
}

type options struct {
	nodes, pods      int
	rate, heartbeats float64
	rest             time.Duration

	questions int
	asking    time.Duration

	controller bool
}

// statusInterval is the interval between two status updates of a node by its kubelet, in seconds.
const statusInterval = 300

// bench is a run with its processes.
type bench struct {
	*driver.Run
	options
	stub      *stub
	scheduler *scheduler
	rows      [][]string
}

func run(ctx context.Context, r *driver.Run, o options) error {
	remove, err := r.Open()
	defer remove()
	if err != nil {
		return err
	}
	b := &bench{Run: r, options: o}
	b.rows = [][]string{{"step", "time", "pods/s", "decision p99", "creation to binding, median and p99", "CPU of Berth", "CPU of the stub",
		"memory now", "peak", "load"}}
	err = b.measure(ctx)
	if b.scheduler != nil {
		b.scheduler.Kill()
	}
	if b.stub != nil {
		err = errors.Join(err, b.stub.check())
		b.stub.Kill()
	}
	title := fmt.Sprintf("%s nodes, %s pods in each step, %s", driver.Thousands(o.nodes), driver.Thousands(o.pods), time.Now().Format(time.DateOnly))
	driver.Table(os.Stdout, title, b.rows)
	return err
}

func (b *bench) measure(ctx context.Context) (err error) {
	if b.stub, err = b.startStub(ctx); err != nil {
		return err
	}
	if b.controller {
		return b.measureController(ctx)
	}
	if err := b.start(ctx, "read the cluster"); err != nil {
		return err
	}
	if b.questions > 0 {
		return b.measureQuestions(ctx)
	}
	if err := b.watched(ctx, "at rest", b.rest, 0); err != nil {
		return err
	}
	const beating = 20 * time.Second
	if err := b.watched(ctx, fmt.Sprintf("%.0f heartbeats/s", b.heartbeats), beating, b.heartbeats); err != nil {
		return err
	}
	usual := float64(b.nodes) / statusInterval
	if err := b.stub.load("heartbeats=%f", usual); err != nil {
		return err
	}
	if err := b.bind(ctx, "plain", ""); err != nil {
		return err
	}
	if err := b.bind(ctx, "spread", "&spread=1"); err != nil {
		return err
	}
	return b.restart(ctx)
}

// start starts the scheduler and waits until it has read the cluster.
func (b *bench) start(ctx context.Context, name string) (err error) {
	began, before := time.Now(), b.stub.cpu()
	if b.scheduler, err = b.startScheduler(ctx); err != nil {
		return err
	}
	if _, err := b.scheduler.WaitFor(ctx, "ready"); err != nil {
		return err
	}
	b.add(name, time.Since(began), "", "", "", b.scheduler.CPU(), b.stub.cpu()-before)
	return nil
}

// watched waits while nodes send heartbeats.
func (b *bench) watched(ctx context.Context, name string, d time.Duration, heartbeats float64) error {
	if err := b.stub.load("heartbeats=%f", heartbeats); err != nil {
		return err
	}
	own, stub, sent := b.scheduler.CPU(), b.stub.cpu(), b.stub.sent("nodes")
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
	}
	name += fmt.Sprintf(" (%s sent)", driver.Thousands(b.stub.sent("nodes")-sent))
	b.add(name, d, "", "", "", b.scheduler.CPU()-own, b.stub.cpu()-stub)
	return nil
}

// bind creates pods and waits until all are bound.
func (b *bench) bind(ctx context.Context, name, parameters string) error {
	own, stub := b.scheduler.CPU(), b.stub.cpu()
	before, err := b.scheduler.decisions(ctx)
	if err != nil {
		return err
	}
	if err := b.stub.load("name=%s&pods=%d&rate=%f%s", name, b.pods, b.rate, parameters); err != nil {
		return err
	}
	report, err := b.stub.awaitBound(ctx, b.scheduler.Process, b.pods)
	if err != nil {
		return err
	}
	after, err := b.scheduler.decisions(ctx)
	if err != nil {
		return err
	}
	batch := report.Batches[len(report.Batches)-1]
	b.add(name, time.Duration(batch.BoundIn*float64(time.Second)), fmt.Sprintf("%.0f", float64(batch.Bound)/batch.BoundIn), after.p99(before),
		fmt.Sprintf("%d and %d ms", report.Waits[0], report.Waits[1]), b.scheduler.CPU()-own, b.stub.cpu()-stub)
	return nil
}

// restart kills the scheduler half way through the binding of pods, and starts another one.
func (b *bench) restart(ctx context.Context) error {
	if err := b.stub.load("name=restart&pods=%d&rate=%f", b.pods, b.rate); err != nil {
		return err
	}
	if _, err := b.stub.awaitBound(ctx, b.scheduler.Process, b.pods/2); err != nil {
		return err
	}
	b.scheduler.Kill()
	if err := b.start(ctx, "read the cluster after kill -9"); err != nil {
		return err
	}
	own, stub := b.scheduler.CPU(), b.stub.cpu()
	report, err := b.stub.awaitBound(ctx, b.scheduler.Process, b.pods)
	if err != nil {
		return err
	}
	batch := report.Batches[len(report.Batches)-1]
	b.add("all bound, from the first creation", time.Duration(batch.BoundIn*float64(time.Second)), "", "", "", b.scheduler.CPU()-own, b.stub.cpu()-stub)
	b.Printf("bound %d of %d pods; bindings of bound pods: %d; beyond a node's size: %d", report.Counts.Bound, 3*b.pods,
		report.Counts.Rebound, report.Counts.Overfull)
	if report.Counts.Bound != 3*b.pods || report.Counts.Rebound > 0 || report.Counts.Overfull > 0 {
		return errors.New("pods were lost, or bound twice, or bound beyond the size of a node")
	}
	return nil
}

// add adds a row to the table.
func (b *bench) add(step string, took time.Duration, rate, p99, waits string, own, stub time.Duration) {
	row := []string{step, driver.Short(took), rate, p99, waits, driver.Short(own), driver.Short(stub),
		driver.Mebibytes(b.scheduler.Resident()), driver.Mebibytes(b.scheduler.Peak()), process.LoadAverage()}
	b.rows = append(b.rows, row)
	b.Printf("%v", row)
}
