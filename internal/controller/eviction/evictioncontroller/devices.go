// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"context"
	"encoding/json"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/kube/outcome"
	"github.com/berth-k8s/berth/internal/pacing"
)

// devicesAgain is the interval between attempts to list a kind that the API server does not serve,
// or does not permit to be listed.
const devicesAgain = time.Minute

// devicesSoon are the intervals between attempts after other failures.
var devicesSoon = pacing.Backoff{First: time.Second, Last: 5 * time.Second}

// deviceFeeds supply the core with the state of devices: claims, slices and rules, each in a
// separate feed. Statuses of rules are not written until all three have been listed.
func (e *Evictor) deviceFeeds() []func(context.Context) {
	kind := func(kind eviction.Kind, resource string, list func() runtime.Object, seen, gone func(runtime.Object)) func(context.Context) {
		sink := feed.Sink{
			Listing: func() { e.See(eviction.Listing{Kind: kind}) },
			Listed:  func() { e.See(eviction.Listed{Kind: kind}); e.devicesListed[kind].Store(true) },
			Seen:    seen,
			Gone:    gone,
		}
		source := feed.Of(e.requests.devices, "", resource, list)
		return func(ctx context.Context) { followSource(ctx, source, sink) }
	}

	return []func(context.Context){
		kind(eviction.Claims, "resourceclaims", func() runtime.Object { return &resourcev1.ResourceClaimList{} },
			func(o runtime.Object) {
				e.Show(eviction.ClaimSeen{Claim: eviction.ClaimOf(o.(*resourcev1.ResourceClaim))}, feed.SizeOf(o))
			},
			func(o runtime.Object) {
				e.See(eviction.ClaimGone{Name: eviction.ClaimOf(o.(*resourcev1.ResourceClaim)).Name})
			}),
		kind(eviction.Slices, "resourceslices", func() runtime.Object { return &resourcev1.ResourceSliceList{} },
			func(o runtime.Object) {
				e.Show(eviction.SliceSeen{Slice: eviction.SliceOf(o.(*resourcev1.ResourceSlice))}, feed.SizeOf(o))
			},
			func(o runtime.Object) { e.See(eviction.SliceGone{Name: o.(*resourcev1.ResourceSlice).Name}) }),
		kind(eviction.Rules, "devicetaintrules", func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },
			func(o runtime.Object) {
				e.Show(eviction.RuleSeen{Rule: eviction.RuleOf(o.(*resourcev1.DeviceTaintRule))}, feed.SizeOf(o))
			},
			func(o runtime.Object) { e.See(eviction.RuleGone{Name: o.(*resourcev1.DeviceTaintRule).Name}) }),
	}
}

// followSource waits until the source can be listed, and then runs its feed. An API server before
// v1.37 does not serve DeviceTaintRules, and older API servers do not serve any device kinds. If
// the kind is not served, or permissions are missing, followSource logs this once and delivers an
// empty list, so that the component counts as synced.
func followSource(ctx context.Context, source feed.Source, sink feed.Sink) {
	said := false
	for tries := 1; ; tries++ {
		asking, cancel := context.WithTimeout(ctx, answerWithin)
		// A single object is listed, because discovery would not show missing permissions.
		_, err := source.List(asking, metav1.ListOptions{Limit: 1})
		cancel()
		if err == nil {
			feed.Run(ctx, source, sink)
			return
		}

		// An unavailable API server is retried soon, because the state of devices is unknown until
		// the list succeeds.
		wait := devicesSoon.After(tries, source.Name)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			wait = devicesAgain
			if !said {
				klog.FromContext(ctx).Info("Cannot list a resource, so its device taints evict no pods",
					"resource", source.Name, "err", err)
				sink.Listing()
				sink.Listed()
				said = true
			}
		}
		if !pacing.Sleep(ctx, wait) {
			return
		}
	}
}

// readDevices reads the device objects requiring a pod's eviction. Nonexistent objects are omitted;
// any other failure fails the whole read, since the eviction of the pod could look unnecessary in a
// partial result. Pools and rules are read once for all pods that request them at the same time;
// claims are specific to a pod.
func (r *requests) readDevices(ctx context.Context, a eviction.ReadDevices) (*eviction.Devices, error) {
	var read eviction.Devices
	for _, name := range a.Claims {
		var claim resourcev1.ResourceClaim
		err := r.devices.Get().Namespace(name.Namespace).Resource("resourceclaims").Name(name.Name).MaxRetries(0).Do(ctx).Into(&claim)
		if err == nil {
			read.Claims = append(read.Claims, eviction.ClaimOf(&claim))
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}

	for _, at := range a.Pools {
		slices, err := r.pools.readShared(ctx, at)
		if err != nil {
			return nil, err
		}
		read.Slices = append(read.Slices, slices...)
	}

	for _, name := range a.Rules {
		rule, err := r.rules.readShared(ctx, name)
		if err != nil {
			return nil, err
		}
		if rule != nil {
			read.Rules = append(read.Rules, *rule)
		}
	}

	return &read, nil
}

// readPool reads the slices of a pool. An API server before v1.37 selects by driver and node only,
// so slices of other pools are dropped here.
func (r *requests) readPool(ctx context.Context, at eviction.PoolAt) (read []eviction.Slice, err error) {
	selector := fields.Set{resourcev1.ResourceSliceSelectorDriver: at.Pool.Driver, resourcev1.ResourceSliceSelectorNodeName: at.Node}
	options := metav1.ListOptions{FieldSelector: selector.AsSelector().String()}
	var list resourcev1.ResourceSliceList
	err = r.devices.Get().Resource("resourceslices").VersionedParams(&options, metav1.ParameterCodec).MaxRetries(0).Do(ctx).Into(&list)
	for i := range list.Items {
		if slice := eviction.SliceOf(&list.Items[i]); slice.Pool == at.Pool {
			read = append(read, slice)
		}
	}
	return read, err
}

// readRule reads a rule, or returns nil if it does not exist.
func (r *requests) readRule(ctx context.Context, name string) (*eviction.Rule, error) {
	var rule resourcev1.DeviceTaintRule
	err := r.devices.Get().Resource("devicetaintrules").Name(name).MaxRetries(0).Do(ctx).Into(&rule)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return new(eviction.RuleOf(&rule)), nil
}

// writeStatus applies the condition to the rule under the field manager of upstream's controller,
// and thus takes over that controller's writes. The apply is forced, because a condition owned by
// another field manager would otherwise cause a conflict.
func (r *requests) writeStatus(ctx context.Context, a eviction.WriteStatus) error {
	// The UID makes the apply fail if the rule was deleted and recreated.
	metadata := outcome.Preconditions(a.UID, "")
	metadata["name"] = a.Rule
	patch, err := json.Marshal(map[string]any{
		"apiVersion": resourcev1.SchemeGroupVersion.String(), "kind": "DeviceTaintRule", "metadata": metadata,
		"status": map[string]any{"conditions": []metav1.Condition{a.Condition}},
	})
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: DeviceName, Force: ptr.To(true)}
	return r.devices.Patch(types.ApplyPatchType).Resource("devicetaintrules").Name(a.Rule).SubResource("status").
		VersionedParams(&options, metav1.ParameterCodec).MaxRetries(0).Body(patch).Do(ctx).Error()
}
