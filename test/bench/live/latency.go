package live

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/internal/process"
)

// Latency is what one pod at a time takes on an idle cluster, from the request that creates it to
// the news that it is bound.
type Latency struct {
	Scheduler string
	Sorted    []time.Duration
	Usage     process.Usage
}

// Quantile returns the time within which the share q of the pods was bound.
func (l *Latency) Quantile(q float64) time.Duration { return quantileOf(l.Sorted, q) }

func quantileOf[T any](sorted []T, q float64) (at T) {
	if len(sorted) == 0 {
		return at
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

const (
	warmUp = 20 // pods that do not count: the first ones wait for the scheduler to start
	// pause lets what a pod leaves to be done, such as its event, be over before the next one: the
	// cluster is idle.
	pause = 10 * time.Millisecond
)

func (b *bench) measureLatencies(ctx context.Context) error {
	if b.Latency == 0 {
		return nil
	}
	for _, c := range b.chosenContenders() {
		b.printProgress("latency: %s, %d pods one at a time", c.Name, b.Latency)
		l, err := b.measureLatency(ctx, c)
		if err != nil {
			return err
		}
		b.report.Latencies = append(b.report.Latencies, *l)
		b.printProgress("latency: %s: p50 %s, p99 %s", c.Name, formatShort(l.Quantile(0.5)), formatShort(l.Quantile(0.99)))
	}
	return nil
}

func (b *bench) measureLatency(ctx context.Context, c *Contender) (*Latency, error) {
	namespace := "bench-latency-" + c.Key
	version, err := b.createNamespace(ctx, namespace)
	if err != nil {
		return nil, err
	}
	w, err := b.watchBound(ctx, namespace, version)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	p, err := b.startScheduler(c)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = p.Stop() }() // where this returns early
	l := &Latency{Scheduler: c.Name}
	for i := range warmUp + b.Latency {
		took, err := b.bindOne(ctx, w, p, namespace, (&Mode{}).newPod(i))
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
	return l, b.deletePods(ctx, namespace)
}

// bindOne has a pod created and bound.
func (b *bench) bindOne(ctx context.Context, w *bound, p *process.Process, namespace string, pod *v1.Pod) (time.Duration, error) {
	began := time.Now()
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	name, err := w.nextBound(ctx, p, patience)
	if err == nil && name != pod.Name {
		err = fmt.Errorf("%s was bound, %s was created", name, pod.Name)
	}
	return time.Since(began), err
}
