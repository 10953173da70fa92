// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// change changes the model at a time.
type change func(c *model.Cluster, now time.Time)

// kind is a resource that the watcher follows. listing and listed are the changes at the beginning
// and the end of a list.
type kind struct {
	client          rest.Interface
	version         schema.GroupVersion
	resource        string
	list            runtime.Object // empty list
	listing, listed change
}

// kinds returns the kinds to follow. Of events, deletions and missing objects are ignored: events
// merely expire in the API server after an hour. Of ResourceClaims, only the existence counts: a
// missing claim is the reason that a pending pod is not tried.
func (w *Watcher) kinds() []kind {
	core := w.clients.CoreV1().RESTClient()
	ignore := func(*model.Cluster, time.Time) {}
	return []kind{
		{core, v1.SchemeGroupVersion, "nodes", &v1.NodeList{}, (*model.Cluster).NodesListing,
			func(c *model.Cluster, now time.Time) { c.NodesListed(now); w.watches.nodes = true }},
		{core, v1.SchemeGroupVersion, "pods", &v1.PodList{}, (*model.Cluster).PodsListing,
			func(c *model.Cluster, now time.Time) { c.PodsListed(now); w.watches.pods = true }},
		{core, v1.SchemeGroupVersion, "events", &v1.EventList{}, ignore, ignore},
		{w.clients.SchedulingV1beta1().RESTClient(), schedulingv1beta1.SchemeGroupVersion, "podgroups", &schedulingv1beta1.PodGroupList{},
			func(c *model.Cluster, _ time.Time) { c.GroupsListing() }, func(c *model.Cluster, _ time.Time) { c.GroupsListed() }},
		{w.clients.SchedulingV1alpha3().RESTClient(), schedulingv1alpha3.SchemeGroupVersion, "compositepodgroups",
			&schedulingv1alpha3.CompositePodGroupList{},
			func(c *model.Cluster, _ time.Time) { c.Trees.Listing() }, func(c *model.Cluster, _ time.Time) { c.Trees.Listed() }},
		{w.clients.ResourceV1().RESTClient(), resourcev1.SchemeGroupVersion, "resourceclaims", &resourcev1.ResourceClaimList{},
			func(c *model.Cluster, _ time.Time) { c.ClaimsListing() }, func(c *model.Cluster, _ time.Time) { c.ClaimsListed() }},
	}
}

// follow follows a kind, if it is served, and records when its watch is broken.
func (w *Watcher) follow(ctx context.Context, k *kind) {
	if k.version != v1.SchemeGroupVersion && !w.awaitServed(ctx, k.version, k.resource) {
		return
	}

	source := &observedSource{Source: feed.Of(k.client, "", k.resource, func() runtime.Object { return k.list.DeepCopyObject() })}
	feed.Run(ctx, source.wrapSource(), feed.Sink{
		Listing: func() { w.changeCluster(k.listing) },
		Listed:  func() { w.changeCluster(k.listed) },
		Seen: func(o runtime.Object) {
			apply := seen(o) // outside of the mutex
			w.changeCluster(func(c *model.Cluster, now time.Time) {
				apply(c, now)
				if k.resource == "nodes" || k.resource == "pods" {
					w.watches.Read++
				}
			})
		},
		Gone: func(o runtime.Object) { w.changeCluster(gone(o)) },
		Lost: func() { w.noteLost(k.resource, source.describeError()) },
		Back: func() { w.noteLost(k.resource, "") },
	})
}

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

// seen returns the change by an object's new state, which it reduces to the shown fields. Other
// kinds are not shown.
func seen(object any) change {
	switch o := object.(type) {
	case *v1.Node:
		info := model.NodeOf(o)
		return func(c *model.Cluster, now time.Time) { c.NodeSeen(now, info) }
	case *v1.Pod:
		pod := model.PodOf(o)
		return func(c *model.Cluster, now time.Time) { c.PodSeen(now, pod) }
	case *v1.Event:
		event := model.EventOf(o)
		return func(c *model.Cluster, _ time.Time) { c.EventSeen(event) }

	case *schedulingv1beta1.PodGroup:
		info := model.GroupOf(o)
		return func(c *model.Cluster, _ time.Time) { c.GroupSeen(info) }
	case *schedulingv1alpha3.CompositePodGroup:
		info := model.CompositeOf(o)
		return func(c *model.Cluster, _ time.Time) { c.Trees.Seen(info) }
	case *resourcev1.ResourceClaim:
		return func(c *model.Cluster, _ time.Time) { c.ClaimSeen(nameOf(o)) }
	}
	return func(*model.Cluster, time.Time) {}
}

// gone returns the change by an object's deletion.
func gone(object any) change {
	return func(c *model.Cluster, now time.Time) {
		switch o := object.(type) {
		case *v1.Node:
			c.NodeGone(now, o.Name)
		case *v1.Pod:
			c.PodGone(now, cmp.Or(o.UID, c.UIDOf(nameOf(o)))) // deletions in a recording have names only
		case *schedulingv1beta1.PodGroup:
			c.GroupGone(nameOf(o))
		case *schedulingv1alpha3.CompositePodGroup:
			c.Trees.Gone(nameOf(o))
		case *resourcev1.ResourceClaim:
			c.ClaimGone(nameOf(o))
		}
	}
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// observedSource is a source that stores its last error for display. The feed's goroutine writes
// the error; other goroutines read it.
type observedSource struct {
	feed.Source
	mu   sync.Mutex
	last error
}

// wrapSource returns the source with its list and watch functions recording their errors.
func (t *observedSource) wrapSource() feed.Source {
	s := t.Source
	s.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list, err := t.Source.List(ctx, o)
		return list, t.noteError(err)
	}
	s.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := t.Source.Watch(ctx, o)
		return w, t.noteError(err)
	}
	return s
}

// noteError records the error of the last request, nil if it succeeded, and returns it.
func (t *observedSource) noteError(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = err
	return err
}

// describeError describes the last error in a few words: the API server's message or its failure to
// respond. The page shows it with the time since the watch broke.
func (t *observedSource) describeError() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.last == nil:
		return "the watch was cut off"
	case apierrors.IsForbidden(t.last):
		return "these credentials may not list and watch " + t.Name
	case apierrors.IsUnauthorized(t.last):
		return "the API server does not accept the credentials"
	case apierrors.ReasonForError(t.last) != metav1.StatusReasonUnknown:
		return t.last.Error()
	}
	return "the API server does not answer"
}
