// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	flowNamespace = "flow"
	// flowRuns is the running time of a pod of the flow. flowStays is the time after which a bound
	// pod is deleted, because a pod on a silent node never ends.
	flowRuns, flowStays = 8 * time.Second, 20 * time.Second
)

// flow creates small pods at a constant rate, and measures each pod's wait for its node.
type flow struct {
	client kubernetes.Interface

	mu      sync.Mutex // guards the fields below
	made    int
	waiting map[string]time.Time // time of creation, by pod
	placed  map[string]time.Time // time of binding, by pod
	waits   []time.Duration
	bound   []time.Time // times of bindings, in order
	began   time.Time   // start of the current createPods
	loaded  time.Duration
}

func newFlow(client kubernetes.Interface) *flow {
	return &flow{client: client, waiting: map[string]time.Time{}, placed: map[string]time.Time{}}
}

// createNamespace creates the flow's namespace.
func (f *flow) createNamespace(ctx context.Context) error {
	_, err := f.client.CoreV1().Namespaces().Create(ctx,
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: flowNamespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", flowNamespace, err)
	}
	return nil
}

// newPod returns the i-th pod. Its priority exceeds that of the filler pods. It tolerates the
// campaign's NoExecute taint forever, for some seconds, or not at all.
func (f *flow) newPod(i int) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("f-", i), Labels: map[string]string{"app": "flow"},
			Annotations: map[string]string{"berth.dev/run-for": flowRuns.String()}},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyNever, PriorityClassName: "soak-high",
			AutomountServiceAccountToken: pointerTo(false), TerminationGracePeriodSeconds: pointerTo(int64(1)),
			Containers: []v1.Container{{Name: "c", Image: "none",
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("5m")}}}},
		},
	}

	if seconds := int64(i % 5); seconds > 0 {
		pod.Spec.Tolerations = []v1.Toleration{{Key: evictKey, Operator: v1.TolerationOpExists,
			Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds}}
		if seconds == 4 {
			pod.Spec.Tolerations[0].TolerationSeconds = nil
		}
	}
	return pod
}

// createPods creates pods until the context ends. A rejected pod is not retried; the next pod has a
// new name.
func (f *flow) createPods(ctx context.Context, perSecond int) {
	f.mu.Lock()
	i := f.made
	f.began = time.Now()
	f.mu.Unlock()
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	const atOnce = 8
	var workers sync.WaitGroup

	names := make(chan int)
	for range atOnce {
		workers.Go(func() {
			for i := range names {
				f.createOne(f.newPod(i))
			}
		})
	}

	defer func() {
		close(names)
		workers.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.loaded += time.Since(f.began)
	}()

	for ; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		names <- i
		f.mu.Lock()
		f.made = i + 1
		f.mu.Unlock()
	}
}

func (f *flow) createOne(pod *v1.Pod) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	f.mu.Lock()
	f.waiting[pod.Name] = time.Now()
	f.mu.Unlock()
	if _, err := f.client.CoreV1().Pods(flowNamespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		f.mu.Lock()
		delete(f.waiting, pod.Name) // if the pod was created despite the error, its wait is not measured
		f.mu.Unlock()
	}
}

// watchPods observes the binding of pods.
func (f *flow) watchPods(ctx context.Context) {
	eachPod(ctx, f.client, flowNamespace, func(pod *v1.Pod, what watch.EventType) {
		f.notePod(pod.Name, pod.Spec.NodeName, what == watch.Deleted, time.Now())
	})
}

func (f *flow) notePod(name, node string, gone bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	since, waited := f.waiting[name]
	switch {
	case waited && (node != "" || gone):
		delete(f.waiting, name)
		f.waits = append(f.waits, now.Sub(since))
		f.bound = append(f.bound, now)
		f.placed[name] = now
	case gone:
		delete(f.placed, name)
	case node != "" && f.placed[name].IsZero():
		f.placed[name] = now
	}
}

// deleteOld deletes pods that have been bound for longer than flowStays, as an owner of Jobs would.
func (f *flow) deleteOld(ctx context.Context) {
	for sleepFor(ctx, 500*time.Millisecond) {
		f.mu.Lock()
		var over []string
		for name, at := range f.placed {
			if time.Since(at) > flowStays {
				over = append(over, name)
			}
		}

		f.mu.Unlock()
		for _, name := range over {
			err := f.client.CoreV1().Pods(flowNamespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: pointerTo(int64(0))})
			if err == nil || apierrors.IsNotFound(err) {
				f.mu.Lock()
				delete(f.placed, name)
				f.mu.Unlock()
			}
		}
	}
}

// awaitPlaced waits until every pod has its node, and returns the pods without one.
func (f *flow) awaitPlaced(ctx context.Context, limit time.Duration) (left []string) {
	for end := time.Now().Add(limit); sleepFor(ctx, 200*time.Millisecond); {
		left = nil
		pods, err := f.client.CoreV1().Pods(flowNamespace).List(ctx, metav1.ListOptions{})
		if err == nil {
			for i := range pods.Items {
				if isWaiting(&pods.Items[i]) {
					left = append(left, podKey(&pods.Items[i]))
				}
			}
		}
		if err == nil && len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	return left
}

// longestGap returns the longest time without a binding since the given time. The load must be
// running.
func (f *flow) longestGap(since time.Time) (longest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := slices.BinarySearchFunc(f.bound, since, time.Time.Compare)
	before := f.began
	if i > 0 && f.bound[i-1].After(before) {
		before = f.bound[i-1]
	}
	for _, at := range append(slices.Clone(f.bound[i:]), time.Now()) {
		longest = max(longest, at.Sub(before))
		before = at
	}
	return longest
}

// allWaits returns all waits.
func (f *flow) allWaits() figures {
	f.mu.Lock()
	defer f.mu.Unlock()
	return figures{pods: len(f.waits), waits: slices.Sorted(slices.Values(f.waits))}
}
