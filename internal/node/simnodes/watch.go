// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simnodes

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// owner passes the feeds' events, in their order, to the goroutine that owns the fleet. Its methods
// are called by the feeds' goroutines.
type owner struct {
	ctx    context.Context
	events chan<- event
}

// sendEvent waits until the owner takes the event or the context ends. This slows down the watch
// instead of accumulating events.
func (o owner) sendEvent(e event) {
	select {
	case o.events <- e:
	case <-o.ctx.Done():
	}
}

// watchNodes follows the nodes of this shape, simulated or not: the fleet distinguishes them by
// label. It watches all nodes, because names cannot be selected by prefix.
func watchNodes(ctx context.Context, group *errgroup.Group, client kubernetes.Interface, shape *simkubelet.Shape, events chan<- event) {
	owner := owner{ctx, events}
	nodes := feed.Of(client.CoreV1().RESTClient(), "", "nodes", func() runtime.Object { return &v1.NodeList{} })
	followSource(ctx, group, nodes, feed.Whole[*v1.Node]{
		// Keep whole objects: nodes are few compared with pods.
		Keep: func(n *v1.Node) (*v1.Node, bool) { return n, shape.Names(n.Name) },
		Seen: func(n *v1.Node) { owner.sendEvent(func(f *simkubelet.Fleet, now time.Time) { f.NodeSeen(n, now) }) },
		Gone: func(n *v1.Node) { owner.sendEvent(func(f *simkubelet.Fleet, now time.Time) { f.NodeGone(n, now) }) },
		// After an interrupted watch, the list reveals missed deletions.
		Listed: func(list []*v1.Node, version string) {
			owner.sendEvent(func(f *simkubelet.Fleet, now time.Time) { f.NodesListed(list, version, now) })
		},
	})
}

// watchPods watches bound pods only; there may be many pending pods, which have no node. It also
// passes on pods of a real node with a name of this shape, which the fleet ignores.
func watchPods(ctx context.Context, group *errgroup.Group, client kubernetes.Interface, shape *simkubelet.Shape, events chan<- event) {
	owner := owner{ctx, events}
	bound := feed.Of(client.CoreV1().RESTClient(), metav1.NamespaceAll, "pods", func() runtime.Object { return &v1.PodList{} })
	// With this field selector, the API server does not send pending pods.
	bound.Selector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	followSource(ctx, group, bound, feed.Whole[*v1.Pod]{
		Keep: func(p *v1.Pod) (*v1.Pod, bool) {
			if !shape.Names(p.Spec.NodeName) {
				return nil, false
			}
			// Trim the pod before it is kept or sent on.
			return simkubelet.Slim(p), true
		},
		Seen: func(p *v1.Pod) { owner.sendEvent(func(f *simkubelet.Fleet, now time.Time) { f.PodSeen(p, now) }) },
		Gone: func(p *v1.Pod) { owner.sendEvent(func(f *simkubelet.Fleet, now time.Time) { f.PodGone(p.UID, now) }) },
		Listed: func(list []*v1.Pod, version string) {
			owner.sendEvent(func(f *simkubelet.Fleet, now time.Time) { f.PodsListed(list, version, now) })
		},
	})
}

// followSource runs a feed until the context ends.
func followSource[T runtime.Object](ctx context.Context, group *errgroup.Group, source feed.Source, show feed.Whole[T]) {
	group.Go(func() error {
		feed.Run(ctx, source, show.Sink())
		return nil
	})
}
