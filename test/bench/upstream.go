// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// upstream is kube-scheduler without an API. Its informers are empty and never run, and its cache
// is filled directly.
type upstream struct {
	scheduler *scheduler.Scheduler
	framework framework.Framework
	snapshot  *cache.Snapshot
	logger    klog.Logger
	stop      context.CancelFunc
}

// newUpstream returns a kube-scheduler with the given nodes. percentage is
// percentageOfNodesToScore; 0 selects the default sampling.
func newUpstream(ctx context.Context, nodes []*v1.Node, percentage int32) (*upstream, error) {
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	client := clientset.NewClientset()
	recorders := func(string) events.EventRecorderLogger { return events.NewFakeRecorder(0) }
	s, err := scheduler.New(ctx, client, informers.NewSharedInformerFactory(client, 0), nil, recorders,
		scheduler.WithPercentageOfNodesToScore(&percentage))
	if err != nil {
		stop()
		return nil, err
	}

	u := &upstream{scheduler: s, framework: s.Profiles[v1.DefaultSchedulerName], stop: stop}
	snapshot, ok := u.framework.SnapshotSharedLister().(*cache.Snapshot)
	if !ok {
		stop()
		return nil, fmt.Errorf("the scheduler's snapshot is a %T", u.framework.SnapshotSharedLister())
	}

	u.snapshot = snapshot
	for _, n := range nodes {
		s.Cache.AddNode(u.logger, n)
	}
	return u, s.Cache.UpdateSnapshot(u.logger, snapshot)
}

// placePod chooses a node for a pod and assumes the pod on it, as in a scheduling cycle without the
// queue and the binding.
func (u *upstream) placePod(ctx context.Context, pod *v1.Pod) error {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return err
	}
	queued := &framework.QueuedPodInfo{PodInfo: info}
	if err := u.scheduler.Cache.UpdateSnapshot(u.logger, u.snapshot); err != nil {
		return err
	}
	result, err := u.scheduler.SchedulePod(ctx, u.framework, framework.NewCycleState(), queued)
	if err != nil {
		return err
	}
	assumed := queued.DeepCopy().Pod
	assumed.Spec.NodeName = result.SuggestedHost
	return u.scheduler.Cache.AssumePod(u.logger, assumed)
}

// measureUpstream returns the cost of a decision by kube-scheduler. most and atMost limit the
// number of decisions and the time.
func measureUpstream(ctx context.Context, m *Mode, nodes int, percentage int32, most int, atMost time.Duration) (Cost, error) {
	list := m.newNodes(nodes)
	u, err := newUpstream(ctx, list, percentage)
	if err != nil {
		return Cost{}, err
	}
	defer u.stop()
	for i := range nodes { // a pod on every node, as on Berth's side
		pod := m.newPod(i)
		pod.Spec.NodeName = list[i].Name
		if err := u.scheduler.Cache.AddPod(u.logger, pod); err != nil {
			return Cost{}, err
		}
	}
	const warm = 20
	return measureEach(warm, most, atMost, func(i int) *v1.Pod { return m.newPod(nodes + i) }, func(pod *v1.Pod) error {
		return u.placePod(ctx, pod)
	})
}

// measureEach calls decide for one pod after the other, and returns the cost of a call. Pods are
// created while the clock is stopped. most and atMost limit the number of calls and the time. The
// first calls do not count, because they read the whole cluster.
func measureEach(first, most int, atMost time.Duration, newPod func(i int) *v1.Pod, decide func(*v1.Pod) error) (Cost, error) {
	clock := rounds{each: atMost}
	runtime.GC() // exclude the garbage from filling the cluster
	for i := 0; i < most && !clock.isDone(); i++ {
		pod := newPod(i)
		clock.startStep()
		if err := decide(pod); err != nil {
			return Cost{}, fmt.Errorf("%s: %w", pod.Name, err)
		}
		if i >= first {
			clock.stopSteps(1)
		}
	}
	return clock.costOfStep(), nil
}
