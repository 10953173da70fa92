// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import (
	"context"
	"time"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// followGroups follows PodGroups where they are served. They are behind feature gates.
func (w *Watcher) followGroups(ctx context.Context) {
	if w.awaitServed(ctx, schedulingv1beta1.SchemeGroupVersion, "podgroups") {
		w.followBy(ctx, w.clients.SchedulingV1beta1().RESTClient(), "podgroups",
			func() runtime.Object { return &schedulingv1beta1.PodGroupList{} }, w.groupSink())
	}
}

// groupSink applies a watch's PodGroups.
func (w *Watcher) groupSink() feed.Sink {
	return feed.Sink{
		Listing: func() { w.changeCluster(func(c *model.Cluster, _ time.Time) { c.GroupsListing() }) },
		Listed:  func() { w.changeCluster(func(c *model.Cluster, _ time.Time) { c.GroupsListed() }) },
		Seen: func(o runtime.Object) {
			info := model.GroupOf(o.(*schedulingv1beta1.PodGroup))
			w.changeCluster(func(c *model.Cluster, _ time.Time) { c.GroupSeen(info) })
		},
		Gone: func(o runtime.Object) {
			g := o.(*schedulingv1beta1.PodGroup)
			name := types.NamespacedName{Namespace: g.Namespace, Name: g.Name}
			w.changeCluster(func(c *model.Cluster, _ time.Time) { c.GroupGone(name) })
		},
	}
}

// followComposites follows CompositePodGroups where they are served. They require a separate
// feature gate.
func (w *Watcher) followComposites(ctx context.Context) {
	if w.awaitServed(ctx, schedulingv1alpha3.SchemeGroupVersion, "compositepodgroups") {
		w.followBy(ctx, w.clients.SchedulingV1alpha3().RESTClient(), "compositepodgroups",
			func() runtime.Object { return &schedulingv1alpha3.CompositePodGroupList{} }, w.compositeSink())
	}
}

// compositeSink applies a watch's CompositePodGroups.
func (w *Watcher) compositeSink() feed.Sink {
	return feed.Sink{
		Listing: func() { w.changeCluster(func(c *model.Cluster, _ time.Time) { c.Trees.Listing() }) },
		Listed:  func() { w.changeCluster(func(c *model.Cluster, _ time.Time) { c.Trees.Listed() }) },
		Seen: func(o runtime.Object) {
			info := model.CompositeOf(o.(*schedulingv1alpha3.CompositePodGroup))
			w.changeCluster(func(c *model.Cluster, _ time.Time) { c.Trees.Seen(info) })
		},
		Gone: func(o runtime.Object) {
			composite := o.(*schedulingv1alpha3.CompositePodGroup)
			name := types.NamespacedName{Namespace: composite.Namespace, Name: composite.Name}
			w.changeCluster(func(c *model.Cluster, _ time.Time) { c.Trees.Gone(name) })
		},
	}
}
