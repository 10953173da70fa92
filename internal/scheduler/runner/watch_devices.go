// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// watchDevices follows devices where the API server serves their API, now or later: an upgraded API
// server may begin to serve it, and of several servers some may do so already.
func (w *watches) watchDevices(ctx context.Context) error {
	var err error
	w.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		err = w.checkServed(ctx, resourcev1.SchemeGroupVersion)
		return isAnswered(err)
	})

	switch {
	case ctx.Err() != nil:
		return nil
	// A missing API is not an error: without it, devices do not exist. An API that appears later is
	// followed from then on.
	case apierrors.IsNotFound(err):
		w.feeds = append(w.feeds, w.awaitDevices)
		return nil
	case err != nil:
		return fmt.Errorf("ask the API server for %s: %w", resourcev1.SchemeGroupVersion, err)
	}

	// The kinds are announced before any feed begins, because pods are decided only after all of
	// them are listed.
	kinds, feeds := w.deviceFeeds()
	w.kinds, w.feeds = append(w.kinds, kinds...), append(w.feeds, feeds...)
	w.watchTaintRules(ctx)
	return nil
}

// watchTaintRules follows DeviceTaintRules where the API server has them, now or later: a server
// before v1.37 has devices without them. If reading them is forbidden, pods are scheduled without
// them.
func (w *watches) watchTaintRules(ctx context.Context) {
	if !w.taintRules {
		return
	}
	var err error
	w.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		err = w.listsTaintRules(ctx)
		return isAnswered(err)
	})
	if err == nil {
		followKind[resourcev1.DeviceTaintRuleList](w, cycle.DeviceTaintRules, w.client.ResourceV1())
		return
	}
	klog.FromContext(ctx).Info("DeviceTaintRules are not followed: they cannot be listed", "err", err)
	w.feeds = append(w.feeds, w.awaitTaintRules)
}

// listsTaintRules returns nil if the API server lists DeviceTaintRules.
func (w *watches) listsTaintRules(ctx context.Context) error {
	_, err := w.client.ResourceV1().DeviceTaintRules().List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// awaitTaintRules follows DeviceTaintRules once the API server lists them.
func (w *watches) awaitTaintRules(ctx context.Context) {
	w.awaitKinds(ctx, "DeviceTaintRules", w.listsTaintRules, func() ([]cycle.Kind, []func(context.Context)) {
		rules := feedOf[resourcev1.DeviceTaintRuleList](w, cycle.DeviceTaintRules, w.client.ResourceV1())
		return []cycle.Kind{cycle.DeviceTaintRules}, []func(context.Context){rules}
	})
}

// checkServed returns nil if the API server serves this version of an API. client-go's discovery
// takes no context, and would delay the end of the scheduler.
func (w *watches) checkServed(ctx context.Context, version schema.GroupVersion) error {
	return w.client.Discovery().RESTClient().Get().AbsPath("/apis", version.String()).Do(ctx).Error()
}

// listsDevices returns nil if the API server lists all followed kinds of the device API.
func (w *watches) listsDevices(ctx context.Context) error {
	devices, one := w.client.ResourceV1(), metav1.ListOptions{Limit: 1}
	_, err := devices.ResourceSlices().List(ctx, one)
	if err == nil {
		_, err = devices.ResourceClaims("").List(ctx, one)
	}
	if err == nil {
		_, err = devices.DeviceClasses().List(ctx, one)
	}
	return err
}

// devicesAgain is the interval between requests for devices, or their rules, while the API server
// does not list them.
const devicesAgain = time.Minute

// awaitDevices follows devices once the API server lists them, and then their rules.
func (w *watches) awaitDevices(ctx context.Context) {
	var rules sync.WaitGroup
	defer rules.Wait()
	w.awaitKinds(ctx, "devices", w.listsDevices, func() ([]cycle.Kind, []func(context.Context)) {
		if w.taintRules {
			rules.Go(func() { w.awaitTaintRules(ctx) })
		}
		return w.deviceFeeds()
	})
}

// awaitKinds follows kinds once the API server lists them. From then on, pods are decided only
// after the kinds have been listed. Without the permission to list them, pods would never be
// decided.
func (w *watches) awaitKinds(
	ctx context.Context, what string, lists func(context.Context) error, follows func() ([]cycle.Kind, []func(context.Context)),
) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(devicesAgain):
		}
		asking, cancel := context.WithTimeout(ctx, readWithin)
		err := lists(asking)
		cancel()
		if err == nil {
			break
		}
		// This is logged on each try (once per devicesAgain), because nothing else explains missing
		// devices.
		if apierrors.IsForbidden(err) {
			klog.FromContext(ctx).Info("The API server serves "+what+" now, but they may not be read", "err", err)
		}
	}

	klog.FromContext(ctx).Info("The API server serves "+what+" now", "version", resourcev1.SchemeGroupVersion)
	kinds, feeds := follows()
	w.see(cycle.Follows{Kinds: kinds})
	var running sync.WaitGroup
	for _, feed := range feeds {
		running.Go(func() { feed(ctx) })
	}
	running.Wait()
}

// deviceFeeds returns the kinds needed for devices. They are followed together: listsDevices has
// checked all of them.
func (w *watches) deviceFeeds() (kinds []cycle.Kind, feeds []func(context.Context)) {
	devices := w.client.ResourceV1()
	return []cycle.Kind{cycle.ResourceSlices, cycle.ResourceClaims, cycle.DeviceClasses}, []func(context.Context){
		feedOf[resourcev1.ResourceSliceList](w, cycle.ResourceSlices, devices),
		feedOf[resourcev1.ResourceClaimList](w, cycle.ResourceClaims, devices),
		feedOf[resourcev1.DeviceClassList](w, cycle.DeviceClasses, devices),
	}
}
