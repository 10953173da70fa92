// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// echoes measures the API server's own latency: the time from the beginning of a request changing a
// pod until the watches show the change. The pod is independent of Berth. One of the two watches
// resembles the scheduler's: it covers the pods of all namespaces including the tenant's. The other
// is the watch that shows the witness the binding of its pods.
type echoes struct {
	mu    sync.Mutex
	all   []echo
	shown [2]chan int // by watch: number of the last observed change
}

type echo struct {
	began time.Time
	took  time.Duration // 0: not seen yet
}

const (
	echoName  = "echo"
	echoLabel = "change"
	echoEvery = 200 * time.Millisecond
	// echoesKept is the time for which echoes are kept. It exceeds the wait of the witness's pods.
	echoesKept = 2 * time.Minute
)

// runEcho repeatedly changes a pod that is never scheduled.
func (s *served) runEcho(ctx context.Context) {
	pods := s.client.CoreV1().Pods(probeNamespace)
	pod := probePod(echoName)
	pod.Spec.SchedulerName = "nobody"
	for ctx.Err() == nil {
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err == nil {
			break
		}
		sleepFor(ctx, echoEvery)
	}
	for i := 1; sleepFor(ctx, echoEvery); i++ {
		s.echoes.beginRequest(time.Now())
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"%d"}}}`, echoLabel, i)
		if _, err := pods.Patch(ctx, echoName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			continue // the time continues to count until the next change is observed
		}
		for _, shown := range s.echoes.shown {
			for seen := 0; seen < i && ctx.Err() == nil; {
				select {
				case <-ctx.Done():
				case seen = <-shown:
				}
			}
		}
		s.echoes.endRequest(time.Now())
	}
}

// watchEchoes watches for the changes.
func (s *served) watchEchoes(ctx context.Context) {
	eachPod(ctx, s.client, "", func(pod *v1.Pod, _ watch.EventType) {
		if pod.Namespace == probeNamespace && pod.Name == echoName {
			s.echoes.seeState(0, pod)
		}
	})
}

// seeState records a state of the pod seen by one of the watches. It does not wait for the other
// watch, which may be behind.
func (e *echoes) seeState(watch int, pod *v1.Pod) {
	n, err := strconv.Atoi(pod.Labels[echoLabel])
	if err != nil {
		return
	}
	select {
	case <-e.shown[watch]: // drop an older number
	default:
	}
	e.shown[watch] <- n
}

// beginRequest records the sending of a request, unless an earlier one has not been observed yet.
func (e *echoes) beginRequest(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.all); n > 0 && e.all[n-1].took == 0 {
		return
	}
	e.all = slices.DeleteFunc(e.all, func(old echo) bool { return now.Sub(old.began) > echoesKept })
	e.all = append(e.all, echo{began: now})
}

func (e *echoes) endRequest(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := &e.all[len(e.all)-1]
	last.took = max(now.Sub(last.began), 1)
}

// longest returns the longest latency so far of a change that was in flight at any time between
// from and to.
func (e *echoes) longest(from, to time.Time) (longest time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.all {
		took := one.took
		if took == 0 {
			took = to.Sub(one.began)
		}
		if one.began.Before(to) && one.began.Add(took).After(from) {
			longest = max(longest, took)
		}
	}
	return longest
}
