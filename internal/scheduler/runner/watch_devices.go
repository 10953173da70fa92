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
	"github.com/berth-k8s/berth/internal/pacing"
)

// watchDevices watches the device kinds if the API server serves them. Otherwise it adds a feed
// that waits until they are served, for example after an upgrade of the API servers.
func (w *watches) watchDevices(ctx context.Context) error {
	var err error
	w.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		err = w.checkServed(ctx, resourcev1.SchemeGroupVersion)
		return isAnswered(err)
	})

	switch {
	case ctx.Err() != nil:
		return nil
	// It is not an error if the API is missing, because then there are no devices.
	case apierrors.IsNotFound(err):
		w.feeds = append(w.feeds, w.awaitDevices)
		return nil
	case err != nil:
		return fmt.Errorf("ask the API server for %s: %w", resourcev1.SchemeGroupVersion, err)
	}

	// The kinds are added to kinds, so that pods are decided only after all of them have been
	// listed.
	kinds, feeds := w.deviceFeeds()
	w.kinds, w.feeds = append(w.kinds, kinds...), append(w.feeds, feeds...)
	w.watchTaintRules(ctx)
	return nil
}

// watchTaintRules watches DeviceTaintRules if the API server serves them. Otherwise, as in an API
// server before v1.37, or if permissions are missing, it adds a feed that waits until they can be
// listed, and pods are scheduled without them.
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

// listsTaintRules returns nil if DeviceTaintRules can be listed.
func (w *watches) listsTaintRules(ctx context.Context) error {
	_, err := w.client.ResourceV1().DeviceTaintRules().List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// awaitTaintRules waits until DeviceTaintRules can be listed, and then runs their feed.
func (w *watches) awaitTaintRules(ctx context.Context) {
	w.awaitKinds(ctx, "DeviceTaintRules", w.listsTaintRules, func() ([]cycle.Kind, []func(context.Context)) {
		rules := feedOf[resourcev1.DeviceTaintRuleList](w, cycle.DeviceTaintRules, w.client.ResourceV1())
		return []cycle.Kind{cycle.DeviceTaintRules}, []func(context.Context){rules}
	})
}

// checkServed returns nil if the API server serves this version of an API. client-go's discovery is
// not used, because it takes no context and could delay the end of the scheduler.
func (w *watches) checkServed(ctx context.Context, version schema.GroupVersion) error {
	return w.client.Discovery().RESTClient().Get().AbsPath("/apis", version.String()).Do(ctx).Error()
}

// listsDevices returns nil if all kinds of deviceFeeds can be listed.
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

// devicesAgain is the interval between attempts to list devices or DeviceTaintRules that are not
// served yet.
const devicesAgain = time.Minute

// awaitDevices waits until the device kinds can be listed, and then runs their feeds and
// awaitTaintRules.
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

// awaitKinds waits until tryList returns nil, and then announces the kinds and runs their feeds.
// From then on, pods are decided only after these kinds have been listed. If tryList did not check
// the permissions, pods might never be decided.
func (w *watches) awaitKinds(
	ctx context.Context, what string, tryList func(context.Context) error, follows func() ([]cycle.Kind, []func(context.Context)),
) {
	for {
		if !pacing.Sleep(ctx, devicesAgain) {
			return
		}
		asking, cancel := context.WithTimeout(ctx, readWithin)
		err := tryList(asking)
		cancel()
		if err == nil {
			break
		}
		// This is logged on each attempt, once per devicesAgain, because nothing else explains why
		// devices are missing.
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

// deviceFeeds returns the kinds needed for devices. They are watched together, because listsDevices
// has checked all of them.
func (w *watches) deviceFeeds() (kinds []cycle.Kind, feeds []func(context.Context)) {
	devices := w.client.ResourceV1()
	return []cycle.Kind{cycle.ResourceSlices, cycle.ResourceClaims, cycle.DeviceClasses}, []func(context.Context){
		feedOf[resourcev1.ResourceSliceList](w, cycle.ResourceSlices, devices),
		feedOf[resourcev1.ResourceClaimList](w, cycle.ResourceClaims, devices),
		feedOf[resourcev1.DeviceClassList](w, cycle.DeviceClasses, devices),
	}
}
