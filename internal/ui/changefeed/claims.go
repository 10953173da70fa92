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
// respond. An API server responds only some time after its start.
const askKindsEvery = 5 * time.Second

// awaitServed waits for the API server to report whether it serves a resource; false if the context
// ends before. It is discovered once: a kind served later is not noticed before a restart.
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

// followClaims follows the existence of ResourceClaims, where they are served. A missing one
// explains why a pending pod with a claim is not tried.
func (w *Watcher) followClaims(ctx context.Context) {
	if w.awaitServed(ctx, resourcev1.SchemeGroupVersion, "resourceclaims") {
		w.followBy(ctx, w.clients.ResourceV1().RESTClient(), "resourceclaims",
			func() runtime.Object { return &resourcev1.ResourceClaimList{} }, w.claimSink())
	}
}

// claimSink applies the existence of ResourceClaims; nothing else of them is kept.
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
