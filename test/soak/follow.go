// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// follower passes all objects of a resource to an observer. It is independent of Berth's code, and
// uses no informer, because it must detect and report possibly missed events.
type follower struct {
	resource string
	client   rest.Interface
	list     func() runtime.Object
	observer *observer

	version string
	newest  uint64    // highest version ever seen
	seenAll time.Time // time until which no event was missed
}

func newFollowers(client kubernetes.Interface, w *observer) []*follower {
	core, policy := client.CoreV1().RESTClient(), client.PolicyV1().RESTClient()
	return []*follower{
		{resource: "nodes", client: core, list: func() runtime.Object { return &v1.NodeList{} }, observer: w},
		{resource: "pods", client: core, list: func() runtime.Object { return &v1.PodList{} }, observer: w},
		{resource: "poddisruptionbudgets", client: policy,
			list: func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} }, observer: w},
	}
}

func (f *follower) runFollower(ctx context.Context) {
	for ctx.Err() == nil {
		if f.version == "" {
			if err := f.listAll(ctx); err != nil {
				sleepFor(ctx, 100*time.Millisecond)
				continue
			}
		}
		if err := f.watchChanges(ctx); err != nil {
			f.version = ""
		}
		sleepFor(ctx, 20*time.Millisecond)
	}
}

func (f *follower) listAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	list := f.list()
	if err := f.client.Get().Resource(f.resource).MaxRetries(0).Do(ctx).Into(list); err != nil {
		return err
	}
	now := time.Now()
	var gap *span
	if !f.seenAll.IsZero() {
		gap = &span{f.seenAll, now}
	}
	present := map[types.UID]bool{}
	_ = meta.EachListItem(list, func(o runtime.Object) error { // the function never fails
		present[o.(metav1.Object).GetUID()] = true
		f.observer.seeObject(o, now, gap)
		return nil
	})
	f.observer.seeListed(f.resource, present, now, gap)
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	f.noteVersion(accessor.GetResourceVersion())
	f.seenAll = now
	return nil
}

// noteVersion records a resource version, and reports a violation if the version is older than a
// previous one.
func (f *follower) noteVersion(version string) {
	f.version = version
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return
	}
	f.observer.checks.addOne(stateKept)
	if n < f.newest {
		f.observer.found(stateKept, fmt.Sprintf("%s were at version %d, and are at %d", f.resource, f.newest, n), f.resource)
	}
	f.newest = max(n, f.newest)
}

// watchChanges runs one watch. If it returns nil, the next watch continues from f.version.
func (f *follower) watchChanges(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := metav1.ListOptions{Watch: true, ResourceVersion: f.version, AllowWatchBookmarks: true}
	watching, err := f.client.Get().Resource(f.resource).VersionedParams(&options, metav1.ParameterCodec).MaxRetries(0).Watch(ctx)
	if err != nil {
		if f.isGone(err) {
			return err
		}
		sleepFor(ctx, 100*time.Millisecond)
		return nil // the API server was not reached: the next watch can still receive the missed events
	}
	defer watching.Stop()
	for event := range watching.ResultChan() {
		now := time.Now()
		switch event.Type {
		case watch.Added, watch.Modified:
			f.observer.seeObject(event.Object, now, nil)
		case watch.Deleted:
			f.observer.missObject(event.Object, now)
		case watch.Error:
			return fmt.Errorf("watch %s: %v", f.resource, event.Object)
		}
		if o, ok := event.Object.(metav1.Object); ok {
			f.version = o.GetResourceVersion()
			if n, err := strconv.ParseUint(f.version, 10, 64); err == nil {
				f.newest = max(n, f.newest)
			}
		}
		f.seenAll = now
	}
	return nil
}

// isGone reports whether the version is too old to watch.
func (f *follower) isGone(err error) bool {
	status, ok := err.(interface{ Status() metav1.Status })
	return ok && status.Status().Code == 410 || ok && status.Status().Code == 504
}

// sleepFor sleeps for d. It returns false if the context ends first.
func sleepFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
