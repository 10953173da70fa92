// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/internal/scheduler/schedulershadow"
	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Round is the measurement of one scheduler in one mode.
type Round struct {
	Scheduler string
	Pods      int
	Bound     int           // number of bound pods; if less than Pods, the round was given up
	First     time.Duration // time from the start of the process to the first binding
	Took      time.Duration // time from the first to the last binding
	Events    int           // number of events written; kube-scheduler drops events if its queue is full
	Victims   int           // number of victims in the preemption mode
	Usage     process.Usage // usage of the process from its start until its events are written

	// Shadow is the report of Berth's shadow on the scheduler's choices, if requested.
	Shadow *schedulershadow.Report

	preempts bool
}

// PerSecond returns the bindings per second, counted from the first binding. In the preemption mode
// it counts from the start of the process, because preemption precedes the first binding.
func (r *Round) PerSecond() float64 {
	if r.preempts {
		return float64(r.Bound) / max((r.First+r.Took).Seconds(), 1e-9)
	}
	return float64(max(r.Bound-1, 0)) / max(r.Took.Seconds(), 1e-9)
}

// CPUPerPod returns the CPU time of the process, including its start, per bound pod.
func (r *Round) CPUPerPod() time.Duration { return r.Usage.CPU / time.Duration(max(r.Bound, 1)) }

const (
	// patience is the maximum time without a binding before a round is given up. kube-scheduler
	// retries a pod after 10 s at the latest.
	patience = 45 * time.Second
	// quiet is the time without a new event after which the events count as complete. Later events
	// are not counted.
	quiet      = 1500 * time.Millisecond
	quietLimit = 20 * time.Second
)

// fillNamespace is the namespace of the lower pods of the preemption mode.
const fillNamespace = "bench-fill"

// measureMode measures all schedulers in a mode.
func (b *bench) measureMode(ctx context.Context, m *Mode) error {
	results := &ModeResult{Mode: m}
	b.report.Modes = append(b.report.Modes, results)
	if m.preempts {
		if _, err := b.CreateNamespace(ctx, fillNamespace); err != nil {
			return err
		}
	}

	for _, s := range b.Schedulers {
		r, err := b.measureRound(ctx, m, &s)
		if r != nil {
			results.Rounds = append(results.Rounds, *r)
		}
		if err != nil {
			return err
		}
	}

	if m.preempts {
		return b.DeletePods(ctx, fillNamespace)
	}
	return nil
}

// measureRound creates pending pods, starts the scheduler, and counts the bindings.
func (b *bench) measureRound(ctx context.Context, m *Mode, s *driver.Scheduler) (*Round, error) {
	r := &Round{Scheduler: s.Name, Pods: b.Pods, preempts: m.preempts}
	if m.preempts {
		r.Pods = b.Preemptors
		if err := b.fillNodes(ctx); err != nil {
			return nil, err
		}
	}

	namespace := "bench-" + m.Name + "-" + s.Key
	w, err := b.watchBound(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	began := time.Now()
	if err := b.CreatePods(ctx, namespace, r.Pods, m.newPod); err != nil {
		return nil, err
	}

	b.Printf("%s: %s pods wait (created at %.0f/s); %s starts", m.Name, driver.Thousands(r.Pods),
		float64(r.Pods)/time.Since(began).Seconds(), s.Name)
	if err := b.runScheduler(ctx, s, namespace, w, r); err != nil {
		return r, err
	}

	if m.preempts {
		left, err := b.CountPods(ctx, fillNamespace)
		if err != nil {
			return r, err
		}
		r.Victims = b.Nodes*lowerPerNode - left
	}

	b.Printf("%s: %s: %.0f pods/s, first after %.1fs, %s CPU a pod, peak %s, %s events", m.Name, s.Name,
		r.PerSecond(), r.First.Seconds(), driver.Short(r.CPUPerPod()), driver.Mebibytes(r.Usage.Peak), driver.Thousands(r.Events))
	return r, b.DeletePods(ctx, namespace)
}

// fillNodes creates the missing lower pods, so that every node is full.
func (b *bench) fillNodes(ctx context.Context) error {
	var pods []*v1.Pod
	for i := range b.Nodes * lowerPerNode {
		pods = append(pods, lowerPod(i, b.Nodes))
	}
	return b.CreateMissing(ctx, fillNamespace, pods)
}

// runScheduler runs the scheduler until all pods are bound and its events are written.
func (b *bench) runScheduler(ctx context.Context, s *driver.Scheduler, namespace string, w *bound, r *Round) error {
	var looksOn *shade
	if b.Shadow {
		var err error
		if looksOn, err = b.startShade(ctx); err != nil {
			return err
		}
		defer func() { _, _ = looksOn.Stop() }() // for early returns
	}

	began := time.Now()
	p, err := b.startPlain(s)
	if err != nil {
		return err
	}
	defer func() { _, _ = p.Stop() }() // for early returns

	r.Bound, r.First, r.Took, err = w.countBound(ctx, p, r.Pods, patience, began)
	if err != nil {
		return err
	}
	if r.Events, err = b.awaitEvents(ctx, namespace, r.Bound); err != nil {
		return err
	}
	if r.Usage, err = p.Stop(); err == nil && looksOn != nil {
		r.Shadow, err = looksOn.readReport()
	}
	return err
}

// bound watches the bound pods of a namespace. The API server sends an Added event for each pod
// when it is bound.
type bound struct{ watch.Interface }

// watchBound creates a namespace and watches its bound pods.
func (b *bench) watchBound(ctx context.Context, namespace string) (*bound, error) {
	version, err := b.CreateNamespace(ctx, namespace)
	if err != nil {
		return nil, err
	}
	w, err := b.WatchPods(ctx, namespace, version, fields.OneTermNotEqualSelector("spec.nodeName", "").String())
	if err != nil {
		return nil, err
	}
	return &bound{w}, nil
}

// errIdle reports a long time without a binding.
var errIdle = errors.New("no pod was bound any more")

// nextBound returns the name of the next bound pod.
func (w *bound) nextBound(ctx context.Context, scheduler *process.Process, patience time.Duration) (string, error) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()

	for {
		select {
		case e, open := <-w.ResultChan():
			pod, err := driver.PodOf(e, open)
			if err != nil {
				return "", err
			}
			if pod != nil && e.Type == watch.Added {
				return pod.Name, nil
			}
		case <-scheduler.Ended:
			return "", scheduler.Gone()
		case <-ctx.Done():
			return "", ctx.Err()
		case <-timeout.C:
			return "", fmt.Errorf("%w for %v", errIdle, patience)
		}
	}
}

// countBound counts bindings until it has counted the given number of pods, or until no pod is
// bound for the time patience. first is the time from since to the first binding; took is the time
// from the first to the last binding.
func (w *bound) countBound(ctx context.Context, scheduler *process.Process, pods int, patience time.Duration, since time.Time) (
	n int, first, took time.Duration, err error) {
	for ; n < pods; n++ {
		_, err := w.nextBound(ctx, scheduler, patience)
		if errors.Is(err, errIdle) {
			return n, first, took, nil
		}
		if err != nil {
			return n, first, took, err
		}

		took = time.Since(since) - first
		if n == 0 {
			first, took = took, 0
		}
	}
	return n, first, took, nil
}

// awaitEvents waits until all events are written or no further event is written, and returns the
// number of events.
func (b *bench) awaitEvents(ctx context.Context, namespace string, want int) (have int, err error) {
	began := time.Now()
	changed := began
	err = b.Until(ctx, "events", 2*quietLimit, func() (string, error) {
		now, err := b.CountEvents(ctx, namespace)
		if now != have {
			have, changed = now, time.Now()
		}
		if have >= want || time.Since(changed) > quiet || time.Since(began) > quietLimit {
			return "", err
		}
		return driver.Lacking(have, want), err
	})
	return have, err
}

// measureCeiling measures the API server's maximum rate of bindings, without any decisions.
func (b *bench) measureCeiling(ctx context.Context) error {
	const namespace = "bench-bindings"
	if _, err := b.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	if err := b.CreatePods(ctx, namespace, b.Pods, plainPod); err != nil {
		return err
	}

	began := time.Now()
	if err := driver.InParallel(ctx, b.Pods, func(ctx context.Context, i int) error {
		return b.Client.CoreV1().Pods(namespace).Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: plainPod(i).Name},
			Target:     v1.ObjectReference{Kind: "Node", Name: driver.NodeName(i % b.Nodes)},
		}, metav1.CreateOptions{})
	}); err != nil {
		return err
	}

	b.report.Ceiling = float64(b.Pods) / time.Since(began).Seconds()
	b.Printf("bindings alone, %d at a time: %s/s", driver.Writers, driver.Thousands(int(b.report.Ceiling)))
	return b.DeletePods(ctx, namespace)
}
