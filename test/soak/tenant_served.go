// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// served is the witness: it creates one normal pod a second and measures each pod's wait for its
// node. The pods request no resources except a pod slot, because any client that may create pods
// can exhaust the other resources; preventing that is the task of quotas.
type served struct {
	client kubernetes.Interface
	late   func(name string, waited time.Duration)
	echoes echoes

	mu       sync.Mutex // guards the fields below
	waiting  map[string]time.Time
	reported map[string]bool
	waits    []time.Duration
	bound    time.Duration // maximum wait; 0: waits are not judged
}

// figures holds the waits of some pods.
type figures struct {
	pods  int
	waits []time.Duration // sorted
}

func (f figures) longest() time.Duration { return f.waitAt(1) }

// waitAt returns a quantile of the waits.
func (f figures) waitAt(share float64) time.Duration {
	if len(f.waits) == 0 {
		return 0
	}
	return f.waits[min(len(f.waits)-1, int(math.Ceil(share*float64(len(f.waits))))-1)]
}

func (f figures) String() string {
	ms := time.Millisecond
	return fmt.Sprintf("%d pods, median %v, 99%% %v, longest %v", f.pods, f.waitAt(0.5).Round(ms),
		f.waitAt(0.99).Round(ms), f.longest().Round(ms))
}

func newServed(client kubernetes.Interface, late func(string, time.Duration)) *served {
	return &served{client: client, late: late,
		echoes: echoes{shown: [2]chan int{make(chan int, 1), make(chan int, 1)}}, waiting: map[string]time.Time{}, reported: map[string]bool{}}
}

func probePod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "witness"}},
		Spec: v1.PodSpec{
			AutomountServiceAccountToken: pointerTo(false), TerminationGracePeriodSeconds: pointerTo(int64(0)),
			Containers: []v1.Container{{Name: "c", Image: "none"}},
		},
	}
}

// createPods creates a pod a second, and deletes each some seconds after it got its node.
func (s *served) createPods(ctx context.Context) {
	pods := s.client.CoreV1().Pods(probeNamespace)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		name := fmt.Sprint("w-", i)
		if _, err := pods.Create(ctx, probePod(name), metav1.CreateOptions{}); err != nil {
			continue // not a failure of Berth
		}
		s.mu.Lock()
		s.waiting[name] = time.Now()
		s.mu.Unlock()
		s.tooLate(time.Now())
		if i >= 5 {
			_ = pods.Delete(ctx, fmt.Sprint("w-", i-5), metav1.DeleteOptions{GracePeriodSeconds: pointerTo(int64(0))}) // may be pending
		}
	}
}

// watchPods observes the binding of pods.
func (s *served) watchPods(ctx context.Context) {
	eachPod(ctx, s.client, probeNamespace, func(pod *v1.Pod, what watch.EventType) {
		if pod.Name == echoName {
			s.echoes.seeState(1, pod)
		} else if pod.Spec.NodeName != "" || what == watch.Deleted {
			s.notePlaced(pod, time.Now())
		}
	})
}

// eachPod watches pods until the context ends.
func eachPod(ctx context.Context, client kubernetes.Interface, namespace string, do func(*v1.Pod, watch.EventType)) {
	for ctx.Err() == nil {
		w, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			sleepFor(ctx, 100*time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*v1.Pod); ok {
				do(pod, event.Type)
			}
		}
	}
}

func (s *served) notePlaced(pod *v1.Pod, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	created, waiting := s.waiting[pod.Name]
	if !waiting {
		return
	}
	delete(s.waiting, pod.Name)
	s.waits = append(s.waits, now.Sub(created))
	if waited := now.Sub(created); s.exceedsBound(created, now) && !s.reported[pod.Name] {
		s.reported[pod.Name] = true
		go s.late(pod.Name, waited)
	}
}

// exceedsBound reports whether a pod waits too long. It excludes the API server's own latency for
// showing the pod, writing its binding and showing the binding.
func (s *served) exceedsBound(since, now time.Time) bool {
	return s.bound > 0 && now.Sub(since) > s.bound+2*s.echoes.longest(since, now)
}

// tooLate reports the waiting pods that exceed the bound.
func (s *served) tooLate(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, since := range s.waiting {
		if s.exceedsBound(since, now) && !s.reported[name] {
			s.reported[name] = true
			go s.late(name, now.Sub(since))
		}
	}
}

// setBound sets the bound from now on.
func (s *served) setBound(bound time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound = bound
}

// takeWaits returns the waits since its last call.
func (s *served) takeWaits() figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := figures{len(s.waits), s.waits}
	slices.Sort(f.waits)
	s.waits = nil
	return f
}

// soFar returns the same as takeWaits, without resetting.
func (s *served) soFar() figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	return figures{len(s.waits), slices.Sorted(slices.Values(s.waits))}
}

// partNamed returns the part with the given name, or nil.
func (t *tenancy) partNamed(name string) *part {
	for _, p := range t.parts {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (t *tenancy) sizesNow() map[string]size {
	now := map[string]size{}
	for _, p := range t.parts {
		now[p.name] = size{memory: residentMemory(p.pid())}
	}
	return now
}

// measureAll records each part's maximum size, and the scheduler's metrics.
func (t *tenancy) measureAll(ctx context.Context) {
	panics := int64(0)
	for sleepFor(ctx, 2*time.Second) {
		t.sizes.mu.Lock()
		for name, now := range t.sizesNow() {
			t.sizes.most[name] = size{memory: max(t.sizes.most[name].memory, now.memory)}
			if name != "controlplane" && now.memory > mostMemory {
				go t.addViolation(bounded, fmt.Sprintf("%s has more than %d MiB", name, mostMemory>>20), name)
			}
		}

		t.sizes.mu.Unlock()
		t.observer.checks.addOne(bounded)
		if page, err := t.partNamed("scheduler").getPath("/metrics"); err == nil {
			if n := parseMetric(page, "berth_scheduler_panics_total"); n > panics {
				panics = n
				t.addViolation(noPanic, "a decision panicked", "scheduler")
			}
			t.observer.checks.addOne(noPanic)
			t.mu.Lock()
			t.decided = decisionsIn(page)
			t.mu.Unlock()
		}
	}
}

// decisions counts the scheduler's decisions by duration.
type decisions struct{ all, long int64 }

// longDecision is the upper bound of a bucket in the scheduler's histogram of decision durations,
// in seconds.
const longDecision = "0.128"

func decisionsIn(page string) decisions {
	const name = "scheduler_scheduling_algorithm_duration_seconds"
	all := parseMetric(page, name+"_count")
	return decisions{all, all - parseMetric(page, name+`_bucket{le="`+longDecision+`"}`)}
}

// whyAbnormal describes differences from the calm phase.
func (t *tenancy) whyAbnormal() string {
	page, err := t.partNamed("scheduler").getPath("/metrics")
	if err != nil {
		return fmt.Sprintf("the scheduler's metrics cannot be read: %v", err)
	}
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, "scheduler_pending_pods{"); ok && !strings.HasSuffix(strings.TrimSpace(rest), " 0") {
			queue, _, _ := strings.Cut(rest, "}")
			if !strings.Contains(queue, "active") { // the witness's pods may be in the active queue
				return "pods are still pending: " + strings.TrimSpace(rest)
			}
		}
	}
	f := t.served.takeWaits()
	if f.pods < 2 || f.longest() > t.waitBound() {
		return fmt.Sprintf("the witness waits: %v", f)
	}
	for name, now := range t.sizesNow() {
		if was := t.calm[name]; name != "controlplane" && now.memory > was.memory+was.memory/2+moreMemory {
			return fmt.Sprintf("%s has %d MiB, %d in peace", name, now.memory>>20, was.memory>>20)
		}
	}
	return ""
}
