// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workloads

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// life holds the times of a pod's events in a watch.
type life struct {
	owner                    types.UID
	made, bound, ready, left time.Time // left is the time when the deletion started
}

// follower follows the pods of a namespace.
type follower struct {
	stop func() error

	mu   sync.Mutex // guards the fields below
	pods map[types.UID]*life
	// serving holds each owner's ready pods, except pods being deleted. The map down holds the
	// start of each owner's current outage. The map outage holds the total duration of each owner's
	// earlier outages.
	serving map[types.UID]map[types.UID]bool
	down    map[types.UID]time.Time
	outage  map[types.UID]time.Duration
}

// followPods follows all existing and future pods of a namespace. For existing pods, life.made is
// zero.
func followPods(ctx context.Context, c *driver.Cluster, namespace string) (*follower, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}

	f := &follower{pods: map[types.UID]*life{},
		serving: map[types.UID]map[types.UID]bool{}, down: map[types.UID]time.Time{}, outage: map[types.UID]time.Duration{}}
	for i := range list.Items {
		f.seeEvent(watch.Added, &list.Items[i], time.Time{})
	}
	f.stop, err = c.Follow(ctx, namespace, list.ResourceVersion, f.seeEvent)
	return f, err
}

func (f *follower) seeEvent(kind watch.EventType, pod *v1.Pod, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seePod(pod, now)
	f.countOutage(pod, kind != watch.Deleted, now)
}

func (f *follower) seePod(pod *v1.Pod, now time.Time) {
	l := f.pods[pod.UID]
	if l == nil {
		l = &life{made: now}
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
			l.owner = owner.UID
		}
		f.pods[pod.UID] = l
	}

	if l.bound.IsZero() && pod.Spec.NodeName != "" {
		l.bound = now
	}
	if l.ready.IsZero() && podutil.IsPodReady(pod) {
		l.ready = now
	}

	if l.left.IsZero() && pod.DeletionTimestamp != nil {
		l.left = now
	}
}

// countOutage adds up the time during which an owner has no ready pod, not counting pods being
// deleted.
func (f *follower) countOutage(pod *v1.Pod, exists bool, now time.Time) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil {
		return
	}

	owner := controller.UID
	if f.serving[owner] == nil {
		f.serving[owner] = map[types.UID]bool{}
	}

	if exists && podutil.IsPodReady(pod) && pod.DeletionTimestamp == nil {
		f.serving[owner][pod.UID] = true
	} else {
		delete(f.serving[owner], pod.UID)
	}

	since, down := f.down[owner]
	switch up := len(f.serving[owner]) > 0; {
	case up && down:
		delete(f.down, owner)
		f.outage[owner] += now.Sub(since)
	case !up && !down && !now.IsZero():
		f.down[owner] = now
	}
}

// listOutages returns the total outage of each owner that had any.
func (f *follower) listOutages() (list []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for owner, since := range f.down {
		f.outage[owner] += time.Since(since)
	}
	for _, d := range f.outage {
		list = append(list, d)
	}
	return list
}

// Moves holds the results for the moved pods.
type Moves struct {
	Moved, Twice int
	// Pending lists the times from a successor's creation to its binding, for bound successors.
	// Ready lists the times from the start of the predecessor's deletion to the successor's
	// readiness, for ready successors.
	Pending, Ready []time.Duration
}

// pairMoves stops the watch and pairs deleted pods with created pods in the order of time: a
// ReplicaSet creates one pod for each deleted pod.
func (f *follower) pairMoves() (m Moves, err error) {
	err = f.stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	left, made := map[types.UID][]*life{}, map[types.UID][]*life{}
	for _, l := range f.pods {
		if !l.left.IsZero() {
			left[l.owner] = append(left[l.owner], l)
		}
		if !l.made.IsZero() {
			made[l.owner] = append(made[l.owner], l)
		}
		if !l.left.IsZero() && !l.made.IsZero() {
			m.Twice++
		}
	}

	for owner, victims := range left {
		successors := made[owner]
		slices.SortFunc(victims, func(a, b *life) int { return a.left.Compare(b.left) })
		slices.SortFunc(successors, func(a, b *life) int { return a.made.Compare(b.made) })
		m.Moved += len(victims)
		for i := range min(len(victims), len(successors)) {
			if next := successors[i]; !next.bound.IsZero() {
				m.Pending = append(m.Pending, next.bound.Sub(next.made))
				if !next.ready.IsZero() {
					m.Ready = append(m.Ready, next.ready.Sub(victims[i].left))
				}
			}
		}
	}

	return m, err
}

// Sum returns the sum of the durations.
func Sum(list []time.Duration) (all time.Duration) {
	for _, d := range list {
		all += d
	}
	return all
}

// Longest returns the longest duration.
func Longest(list []time.Duration) time.Duration {
	return slices.MaxFunc(append(list, 0), cmp.Compare)
}
