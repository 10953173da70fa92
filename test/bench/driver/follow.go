// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// WatchPods watches the pods of a namespace. It resumes a watch that ends, because a busy API
// server ends lagging watches.
func (c *Cluster) WatchPods(ctx context.Context, namespace, version, selector string) (watch.Interface, error) {
	return watchtools.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return c.Client.CoreV1().Pods(namespace).Watch(ctx, options)
		},
	})
}

// PodOf returns the pod of a watch event, nil for a bookmark, or an error if the watch failed or
// ended.
func PodOf(e watch.Event, open bool) (*v1.Pod, error) {
	if !open {
		return nil, errors.New("the watch on pods ended")
	}
	if e.Type == watch.Error {
		return nil, apierrors.FromObject(e.Object)
	}
	pod, _ := e.Object.(*v1.Pod)
	return pod, nil
}

// Follow calls see for each event of the pods of a namespace from a resource version on, one call
// after the other and without delay, until stop is called. stop returns an error if the watch ended
// before.
func (c *Cluster) Follow(ctx context.Context, namespace, version string,
	see func(kind watch.EventType, pod *v1.Pod, now time.Time)) (stop func() error, err error) {
	w, err := c.WatchPods(ctx, namespace, version, "")
	if err != nil {
		return nil, err
	}

	var failed error // read after ended is closed
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			pod, err := PodOf(e, true)
			switch {
			case err != nil:
				failed = err
			case pod != nil:
				see(e.Type, pod, time.Now())
			}
		}
	}()

	return func() error {
		w.Stop()
		<-ended
		return failed
	}, nil
}
