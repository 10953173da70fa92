// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Latency holds the latencies of single pods on an idle cluster, from the request that creates a
// pod to the watch event of its binding.
type Latency struct {
	Scheduler string
	Sorted    []time.Duration
	Usage     process.Usage
}

const (
	warmUp = 20 // number of first pods that do not count, since they wait for the scheduler to start
	// pause is the pause between two pods. Remaining work for a pod, such as its event, finishes in
	// it, so that the cluster is idle again.
	pause = 10 * time.Millisecond
)

func (b *bench) measureLatencies(ctx context.Context) error {
	for _, s := range b.Schedulers {
		b.Printf("latency: %s, %d pods one at a time", s.Name, b.Latency)
		l, err := b.measureLatency(ctx, &s)
		if err != nil {
			return err
		}
		b.report.Latencies = append(b.report.Latencies, *l)
		b.Printf("latency: %s: p50 %s, p99 %s", s.Name, driver.Short(driver.Quantile(l.Sorted, 0.5)),
			driver.Short(driver.Quantile(l.Sorted, 0.99)))
	}
	return nil
}

func (b *bench) measureLatency(ctx context.Context, s *driver.Scheduler) (*Latency, error) {
	namespace := "bench-latency-" + s.Key
	w, err := b.watchBound(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	p, err := b.startPlain(s)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = p.Stop() }() // for early returns

	l := &Latency{Scheduler: s.Name}
	for i := range warmUp + b.Latency {
		took, err := b.bindOne(ctx, w, p, namespace, plainPod(i))
		if err != nil {
			return nil, err
		}
		if i >= warmUp {
			l.Sorted = append(l.Sorted, took)
		}
		time.Sleep(pause)
	}

	slices.Sort(l.Sorted)
	if l.Usage, err = p.Stop(); err != nil {
		return nil, err
	}
	return l, b.DeletePods(ctx, namespace)
}

// bindOne creates a pod and returns the time until its binding.
func (b *bench) bindOne(ctx context.Context, w *bound, p *process.Process, namespace string, pod *v1.Pod) (time.Duration, error) {
	began := time.Now()
	if _, err := b.Client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	name, err := w.nextBound(ctx, p, patience)
	if err == nil && name != pod.Name {
		err = fmt.Errorf("%s was bound, %s was created", name, pod.Name)
	}
	return time.Since(began), err
}
