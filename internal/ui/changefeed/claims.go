// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import (
	"context"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// askKindsEvery is the pause before discovery of a kind is retried, if the API server did not
// respond. A starting API server does not respond immediately.
const askKindsEvery = 5 * time.Second

// awaitServed waits for the API server to report whether it serves a resource; it returns false if
// the context ends first. Discovery happens once: a kind served later is not detected until a
// restart.
func (w *Watcher) awaitServed(ctx context.Context, version schema.GroupVersion, resource string) bool {
	for {
		resources, err := w.clients.Discovery().ServerResourcesForGroupVersion(version.String())
		if err == nil || apierrors.IsNotFound(err) {
			return err == nil && slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == resource })
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(askKindsEvery):
		}
	}
}

// followClaims tracks the existence of ResourceClaims if they are served. A missing claim is the
// reason that a pending pod is not tried.
func (w *Watcher) followClaims(ctx context.Context) {
	if w.awaitServed(ctx, resourcev1.SchemeGroupVersion, "resourceclaims") {
		w.followBy(ctx, w.clients.ResourceV1().RESTClient(), "resourceclaims",
			func() runtime.Object { return &resourcev1.ResourceClaimList{} }, w.claimSink())
	}
}

// claimSink applies the existence of ResourceClaims and keeps no other data of them.
func (w *Watcher) claimSink() feed.Sink {
	nameOf := func(o runtime.Object) types.NamespacedName {
		claim := o.(*resourcev1.ResourceClaim)
		return types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	}
	return feed.Sink{
		Listing: func() { w.changeCluster(func(c *model.Cluster, _ time.Time) { c.ClaimsListing() }) },
		Listed:  func() { w.changeCluster(func(c *model.Cluster, _ time.Time) { c.ClaimsListed() }) },
		Seen: func(o runtime.Object) {
			w.changeCluster(func(c *model.Cluster, _ time.Time) { c.ClaimSeen(nameOf(o)) })
		},
		Gone: func(o runtime.Object) {
			w.changeCluster(func(c *model.Cluster, _ time.Time) { c.ClaimGone(nameOf(o)) })
		},
	}
}
