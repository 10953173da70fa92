package live

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/scheduler/shadow"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Round is one mode with one scheduler.
type Round struct {
	Scheduler string
	Pods      int
	Bound     int           // fewer than Pods: it was given up
	First     time.Duration // from the start of the process to the first pod bound
	Took      time.Duration // from the first pod bound to the last
	Events    int           // written by the end; kube-scheduler drops some when they queue up
	Victims   int           // in preemption mode
	Usage     process.Usage // of the process, from its start until its events are written

	// Shadow is what Berth thought of the choices, if it was to look.
	Shadow *shadow.Report

	preempts bool
}

// PerSecond is the rate of binding. Where room has to be made, which comes before the first
// binding, it counts from the start.
func (r *Round) PerSecond() float64 {
	if r.preempts {
		return float64(r.Bound) / max((r.First+r.Took).Seconds(), 1e-9)
	}
	return float64(max(r.Bound-1, 0)) / max(r.Took.Seconds(), 1e-9)
}

// CPUPerPod is all CPU of the process, its start included, shared out.
func (r *Round) CPUPerPod() time.Duration { return r.Usage.CPU / time.Duration(max(r.Bound, 1)) }

const (
	// patience is how long no pod may be bound before a round is given up. kube-scheduler tries a
	// pod again after 10 s at the latest.
	patience = 45 * time.Second
	// quiet is how long no event must have come for them to be complete; a scheduler that has more
	// to say is cut short.
	quiet      = 1500 * time.Millisecond
	quietLimit = 20 * time.Second
)

// measureMode measures all schedulers in a mode.
func (b *bench) measureMode(ctx context.Context, m *Mode) error {
	results := &ModeResult{Mode: m}
	b.report.Modes = append(b.report.Modes, results)
	if m.preempts {
		if _, err := b.createNamespace(ctx, fillNamespace); err != nil {
			return err
		}
	}

	for _, c := range b.chosenContenders() {
		r, err := b.measureRound(ctx, m, c)
		if r != nil {
			results.Rounds = append(results.Rounds, *r)
		}
		if err != nil {
			return err
		}
	}

	if m.preempts {
		return b.deletePods(ctx, fillNamespace)
	}
	return nil
}

// measureRound has pods wait, starts the scheduler, and counts.
func (b *bench) measureRound(ctx context.Context, m *Mode, c *Contender) (*Round, error) {
	pods := b.Pods
	if m.preempts {
		pods = b.Preemptors
		if err := b.fillNodes(ctx); err != nil {
			return nil, err
		}
	}

	namespace := "bench-" + m.Name + "-" + c.Key
	version, err := b.createNamespace(ctx, namespace)
	if err != nil {
		return nil, err
	}

	began := time.Now()
	if err := b.createPods(ctx, namespace, pods, m.newPod); err != nil {
		return nil, err
	}

	b.printProgress("%s: %s pods wait (created at %.0f/s); %s starts", m.Name, formatThousands(pods),
		float64(pods)/time.Since(began).Seconds(), c.Name)
	r, err := b.runScheduler(ctx, m, c, namespace, version, pods)
	if err != nil {
		return r, err
	}

	if m.preempts {
		left, err := b.countPods(ctx, fillNamespace)
		if err != nil {
			return r, err
		}
		r.Victims = b.Nodes*lowerPerNode - left
	}

	b.printProgress("%s: %s: %.0f pods/s, first after %.1fs, %s CPU a pod, peak %s, %s events", m.Name, c.Name,
		r.PerSecond(), r.First.Seconds(), formatShort(r.CPUPerPod()), formatMebibytes(r.Usage.Peak), formatThousands(r.Events))
	return r, b.deletePods(ctx, namespace)
}

// runScheduler runs the scheduler until all is bound and its events are written.
func (b *bench) runScheduler(ctx context.Context, m *Mode, c *Contender, namespace, version string, pods int) (*Round, error) {
	w, err := b.watchBound(ctx, namespace, version)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	r := &Round{Scheduler: c.Name, Pods: pods, preempts: m.preempts}
	var s *shade
	if b.Shadow {
		if s, err = b.startShade(ctx); err != nil {
			return r, err
		}
		defer func() { _, _ = s.Stop() }() // where this returns early
	}
	began := time.Now()
	p, err := b.startScheduler(c)
	if err != nil {
		return r, err
	}
	defer func() { _, _ = p.Stop() }() // where this returns early
	var first, last time.Time
	for r.Bound < pods {
		if _, err = w.nextBound(ctx, p, patience); err != nil {
			break
		}
		last = time.Now()
		if r.Bound == 0 {
			first = last
		}
		r.Bound++
	}
	if err != nil && !errors.Is(err, errIdle) {
		return r, err
	}
	r.First, r.Took = first.Sub(began), last.Sub(first)
	if r.Events, err = b.awaitEvents(ctx, namespace, r.Bound); err != nil {
		return r, err
	}
	if r.Usage, err = p.Stop(); err == nil && s != nil {
		r.Shadow, err = s.readReport()
	}
	return r, err
}

// awaitEvents waits until all are written, or no more come, and returns how many there are.
func (b *bench) awaitEvents(ctx context.Context, namespace string, want int) (int, error) {
	began := time.Now()
	have, changed := 0, began
	err := b.pollUntil(ctx, "events", 2*quietLimit, func() (bool, error) {
		list, err := b.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return false, err
		}
		now := countItems(len(list.Items), list.ListMeta)
		if now != have {
			have, changed = now, time.Now()
		}
		return have >= want || time.Since(changed) > quiet || time.Since(began) > quietLimit, nil
	})
	return have, err
}

// countPods returns how many pods a namespace has.
func (b *bench) countPods(ctx context.Context, namespace string) (int, error) {
	list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return countItems(len(list.Items), list.ListMeta), nil
}

// countItems is the length of a list of which one item was asked for.
func countItems(items int, meta metav1.ListMeta) int {
	if meta.RemainingItemCount != nil {
		items += int(*meta.RemainingItemCount)
	}
	return items
}

// measureCeiling has bindings sent for waiting pods with nobody deciding: as many as the API server
// takes.
func (b *bench) measureCeiling(ctx context.Context) error {
	const namespace = "bench-bindings"
	if _, err := b.createNamespace(ctx, namespace); err != nil {
		return err
	}
	if err := b.createPods(ctx, namespace, b.Pods, (&Mode{}).newPod); err != nil {
		return err
	}

	began := time.Now()
	if err := eachParallel(ctx, b.Pods, func(ctx context.Context, i int) error {
		return b.client.CoreV1().Pods(namespace).Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: (&Mode{}).newPod(i).Name},
			Target:     v1.ObjectReference{Kind: "Node", Name: nodeName(i % b.Nodes)},
		}, metav1.CreateOptions{})
	}); err != nil {
		return err
	}

	b.report.Ceiling = float64(b.Pods) / time.Since(began).Seconds()
	b.printProgress("bindings alone, %d at a time: %s/s", writers, formatThousands(int(b.report.Ceiling)))
	return b.deletePods(ctx, namespace)
}
