// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Startup holds the startup latencies of pods on simulated nodes, measured like the pod startup
// latency of clusterloader2, which checks the SLOs of Kubernetes. A first load saturates the
// cluster and shows the scheduler's throughput per interval. While the pods of that load run,
// further pods are created at a steady rate, and the time until a watch reports each of them as
// running is measured. kube-scheduler and Berth are measured one after the other.
type Startup struct {
	Scheduler string
	Saturate  int       // number of pods of the first load
	Rates     []float64 // pods bound per second in each interval of the first load, sorted
	Average   float64   // pods bound per second during the whole first load
	// These are the sorted times of the further pods: Bound is the time from the creating request
	// to the binding, Run is the time from the binding until the pod runs, and Startup is the total
	// time.
	Bound, Run, Startup []time.Duration
}

const (
	// As in clusterloader2.
	startupInterval = 5 * time.Second // interval of throughput measurements
	startupRate     = 5               // further pods per second, after the cluster is saturated
	startupSLO      = 5 * time.Second // goal for 99 % of these pods
)

// startups is a run that measures the startup of pods.
type startups struct{ *bench }

// measureStartups measures both schedulers.
func (b *startups) measureStartups(ctx context.Context) error {
	if err := b.StartNodes(ctx, b.Nodes); err != nil {
		return err
	}
	for _, c := range b.Schedulers {
		s, err := b.measureScheduler(ctx, &c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		b.report.Startups = append(b.report.Startups, *s)
		b.Printf("startup: %s: %.0f pods/s, 99 %% of %d pods run within %s", c.Name, s.Average, len(s.Startup),
			driver.Short(driver.Quantile(s.Startup, 0.99)))
	}
	return nil
}

// measureScheduler measures one scheduler.
func (b *startups) measureScheduler(ctx context.Context, c *driver.Scheduler) (*Startup, error) {
	namespace := "bench-startup-" + c.Key
	version, err := b.CreateNamespace(ctx, namespace)
	if err != nil {
		return nil, err
	}
	pods, err := b.WatchPods(ctx, namespace, version, "")
	if err != nil {
		return nil, err
	}
	defer pods.Stop()
	p, err := b.startPlain(c)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = p.Stop() }() // for early returns

	w := &startupWatch{watch: pods, bound: map[string]time.Time{}, running: map[string]time.Time{}}
	s := &Startup{Scheduler: c.Name, Saturate: b.Pods}
	if err := b.saturateCluster(ctx, s, w, p, namespace); err != nil {
		return nil, err
	}
	b.Printf("startup: %s: %s pods run; %d more, %d a second", c.Name, driver.Thousands(b.Pods), b.Startup, startupRate)
	times, created := map[string]time.Time{}, make(chan error, 1)
	go func() { created <- b.createSteadily(ctx, namespace, times) }()
	if err := w.followUntil(ctx, p, created, func() bool { return len(w.running) == b.Pods+b.Startup }); err != nil {
		return nil, err
	}

	for name, began := range times {
		s.Bound = append(s.Bound, w.bound[name].Sub(began))
		s.Run = append(s.Run, w.running[name].Sub(w.bound[name]))
		s.Startup = append(s.Startup, w.running[name].Sub(began))
	}
	for _, all := range [][]time.Duration{s.Bound, s.Run, s.Startup} {
		slices.Sort(all)
	}
	if _, err := p.Stop(); err != nil {
		return nil, err
	}
	return s, b.DeletePods(ctx, namespace)
}

// saturateCluster creates the pods of the first load while the scheduler runs, and waits until they
// run.
func (b *startups) saturateCluster(ctx context.Context, s *Startup, w *startupWatch, p *process.Process, namespace string) error {
	b.Printf("startup: %s: %s pods saturate the cluster", s.Scheduler, driver.Thousands(b.Pods))
	created := make(chan error, 1)
	go func() { created <- b.CreatePods(ctx, namespace, b.Pods, plainPod) }()
	if err := w.followUntil(ctx, p, created, func() bool { return len(w.running) == b.Pods }); err != nil {
		return err
	}
	s.Rates, s.Average = throughputOf(slices.Collect(maps.Values(w.bound)))
	return nil
}

// throughputOf returns the sorted rates of bindings per second in each complete interval, and the
// average rate.
func throughputOf(times []time.Time) (rates []float64, average float64) {
	if len(times) == 0 {
		return nil, 0
	}
	slices.SortFunc(times, time.Time.Compare)
	first, last := times[0], times[len(times)-1]
	for from := first; !from.Add(startupInterval).After(last); from = from.Add(startupInterval) {
		n := 0
		for _, at := range times {
			if !at.Before(from) && at.Before(from.Add(startupInterval)) {
				n++
			}
		}
		rates = append(rates, float64(n)/startupInterval.Seconds())
	}
	slices.Sort(rates)
	return rates, float64(len(times)-1) / max(last.Sub(first).Seconds(), 1e-9)
}

// createSteadily creates the measured pods, and records the time of each request.
func (b *startups) createSteadily(ctx context.Context, namespace string, times map[string]time.Time) error {
	tick := time.NewTicker(time.Second / startupRate)
	defer tick.Stop()
	for i := range b.Startup {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		pod := plainPod(b.Pods + i)
		times[pod.Name] = time.Now()
		if _, err := b.Client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// startupWatch records the events of pods in a watch, with their times.
type startupWatch struct {
	watch          watch.Interface
	bound, running map[string]time.Time
}

// followUntil records events until all pods are created and done returns true. It returns an error
// if a creation fails, the scheduler ends, or events cease.
func (w *startupWatch) followUntil(ctx context.Context, scheduler *process.Process, created <-chan error, done func() bool) error {
	idle := time.NewTimer(patience)
	defer idle.Stop()
	for created != nil || !done() {
		select {
		case err := <-created:
			if err != nil {
				return fmt.Errorf("create pods: %w", err)
			}
			created = nil
		case e, open := <-w.watch.ResultChan():
			pod, err := driver.PodOf(e, open)
			if err != nil {
				return err
			}
			if pod != nil {
				w.notePod(pod, time.Now())
			}
			idle.Reset(patience)
		case <-scheduler.Ended:
			return scheduler.Gone()
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			return fmt.Errorf("%d pods are bound, %d run, and no more came for %v", len(w.bound), len(w.running), patience)
		}
	}

	return nil
}

func (w *startupWatch) notePod(pod *v1.Pod, now time.Time) {
	if _, known := w.bound[pod.Name]; !known && pod.Spec.NodeName != "" {
		w.bound[pod.Name] = now
	}
	if _, known := w.running[pod.Name]; !known && pod.Status.Phase == v1.PodRunning {
		w.running[pod.Name] = now
	}
}

func (r *Report) writeStartups(w io.Writer) {
	lines := [][]string{{"scheduler", "pods", "pods/s", "p50 of 5 s", "max of 5 s", "then", "to a node p50", "p99",
		"to running p50", "p99", "startup p50", "p90", "p99", "goal"}}

	for i := range r.Startups {
		s := &r.Startups[i]
		at := func(sorted []time.Duration, q float64) string { return driver.Short(driver.Quantile(sorted, q)) }
		lines = append(lines, []string{
			s.Scheduler, driver.Thousands(s.Saturate), fmt.Sprintf("%.0f", s.Average),
			fmt.Sprintf("%.0f", driver.Quantile(s.Rates, 0.5)), fmt.Sprintf("%.0f", driver.Quantile(s.Rates, 1)),
			fmt.Sprintf("%d at %d/s", len(s.Startup), startupRate), at(s.Bound, 0.5), at(s.Bound, 0.99),
			at(s.Run, 0.5), at(s.Run, 0.99), at(s.Startup, 0.5), at(s.Startup, 0.9),
			at(s.Startup, 0.99) + driver.Mark(driver.Quantile(s.Startup, 0.99) <= startupSLO), driver.Short(startupSLO),
		})
	}

	driver.Table(w, fmt.Sprintf("Live: scheduling throughput and pod startup, %s simulated nodes", driver.Thousands(r.Nodes)), lines)
}
