// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// watches follow the API server's objects of each kind and show them to the core. They are created
// before anything runs; kinds served only later are added by feeds that wait for them.
//
// A kind is announced to the core (cycle.Follows) before its feed begins, because the core decides
// pods only after every announced kind has been listed.
type watches struct {
	client                      kubernetes.Interface
	see                         func(cycle.Event)
	show                        func(e cycle.Event, size int) // like see, for objects shown by a watch
	life                        *lifetime
	strips                      func() bool     // whether the core gets objects stripped for a journal
	lead                        <-chan struct{} // Options.Lead; nil: leads from the start
	shadows, groups, taintRules bool            // whether other schedulers decide, and the followed kinds
	composites                  bool
	podStatuses                 *statuses[*statusWrite]
	groupStatuses               *statuses[cycle.WriteGroup]

	stale atomic.Int32 // kinds to list again before this scheduler leads
	kinds []cycle.Kind // followed by the feeds from the start
	feeds []func(context.Context)
}

// addFeeds adds a feed for each followed kind. It may query the API server for the kinds it serves,
// and wait for the response until the scheduler stops.
func (w *watches) addFeeds(ctx context.Context) error {
	core, apps, storage := w.client.CoreV1(), w.client.AppsV1(), w.client.StorageV1()
	followKind[v1.NodeList](w, cycle.Nodes, core)
	followKind[v1.PodList](w, cycle.Pods, core)
	followKind[v1.NamespaceList](w, cycle.Namespaces, core)
	followKind[v1.ServiceList](w, cycle.Services, core)
	followKind[v1.ReplicationControllerList](w, cycle.ReplicationControllers, core)
	followKind[appsv1.ReplicaSetList](w, cycle.ReplicaSets, apps)
	followKind[appsv1.StatefulSetList](w, cycle.StatefulSets, apps)

	followKind[policyv1.PodDisruptionBudgetList](w, cycle.DisruptionBudgets, w.client.PolicyV1())
	followKind[v1.PersistentVolumeList](w, cycle.Volumes, core)
	followKind[v1.PersistentVolumeClaimList](w, cycle.Claims, core)
	followKind[storagev1.StorageClassList](w, cycle.StorageClasses, storage)
	followKind[storagev1.CSINodeList](w, cycle.CSINodes, storage)
	followKind[storagev1.CSIDriverList](w, cycle.CSIDrivers, storage)
	followKind[storagev1.CSIStorageCapacityList](w, cycle.CSICapacities, storage)
	followKind[storagev1.VolumeAttachmentList](w, cycle.VolumeAttachments, storage)

	w.watchRooms(ctx)
	if err := w.watchGroups(ctx); err != nil {
		return err
	}
	return w.watchDevices(ctx)
}

// leaseAgain is the interval between requests for the Lease of watchRooms while reading it is
// forbidden. An API server that has only just started may refuse a request and allow it a moment
// later.
const leaseAgain = 5 * time.Minute

// watchRooms follows the Lease recording the kept room. Pods are decided only after it has been
// read, or the room could be lost at a restart. Without the permission to read it, pods are
// scheduled all the same.
func (w *watches) watchRooms(ctx context.Context) {
	if w.shadows {
		return
	}
	// One Lease by name: the permission to list Leases is limited to it.
	leases := w.client.CoordinationV1().Leases(cycle.MoveLeaseNamespace)
	selector := fields.OneTermEqualSelector("metadata.name", cycle.MoveLeaseName).String()
	room := feed.Of(w.client.CoordinationV1().RESTClient(), cycle.MoveLeaseNamespace, string(cycle.MoveLeases),
		func() runtime.Object { return &coordinationv1.LeaseList{} })
	room.Selector = selector
	kinds, run := []cycle.Kind{cycle.MoveLeases}, func(ctx context.Context) { feed.Run(ctx, room, w.newSink(cycle.MoveLeases)) }

	var err error
	ask := func(ctx context.Context) bool {
		_, err = leases.List(ctx, metav1.ListOptions{FieldSelector: selector, Limit: 1})
		return isAnswered(err)
	}

	if w.life.retryUntilStopped(ctx, ask); err == nil {
		w.kinds, w.feeds = append(w.kinds, kinds...), append(w.feeds, run)
		return
	}

	klog.FromContext(ctx).Info("No room is kept for pods that berth moves: the Lease that shows it cannot be read", "err", err)
	w.feeds = append(w.feeds, func(ctx context.Context) {
		for err != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(leaseAgain):
			}
			asking, cancel := context.WithTimeout(ctx, readWithin)
			ask(asking)
			cancel()
		}
		w.see(cycle.Follows{Kinds: kinds})
		run(ctx)
	})
}

// listOf is a pointer to a list of objects. With it followKind needs only the list's type argument:
// the pointer's type follows from it.
type listOf[L any] interface {
	*L
	runtime.Object
}

// group is the client of an API group.
type group interface{ RESTClient() rest.Interface }

// followKind adds a kind to the watched ones.
func followKind[L any, P listOf[L]](w *watches, kind cycle.Kind, client group) {
	w.kinds, w.feeds = append(w.kinds, kind), append(w.feeds, feedOf[L, P](w, kind, client))
}

// feedOf returns a feed giving the core all objects of a kind.
func feedOf[L any, P listOf[L]](w *watches, kind cycle.Kind, client group) func(context.Context) {
	resource := string(kind) // kinds have the names of resources
	source := feed.Of(client.RESTClient(), "", resource, func() runtime.Object { return P(new(L)) })
	var fresh func()
	// The two kinds allocated by decisions: room on nodes, and devices. See beginLeading.
	if w.lead != nil && (kind == cycle.Pods || kind == cycle.ResourceClaims) {
		source.Anew, fresh = w.lead, w.beginLeading
		w.stale.Add(1)
	}
	sink := w.newSink(kind)
	sink.Fresh = fresh
	return func(ctx context.Context) { feed.Run(ctx, source, sink) }
}

// newSink passes the objects of a kind to the core. The condition of a bound or deleted pod no
// longer needs to be written.
func (w *watches) newSink(kind cycle.Kind) feed.Sink {
	return feed.Sink{
		Listing: func() { w.see(cycle.Listing{Kind: kind}) },
		Listed:  func() { w.see(cycle.Listed{Kind: kind}) },
		Seen: func(o runtime.Object) {
			if object, ok := w.toShown(o); ok {
				w.show(cycle.Seen{Kind: kind, Object: object}, feed.SizeOf(o))
				if pod, is := object.(*v1.Pod); is && pod.Spec.NodeName != "" {
					w.podStatuses.forgetObject(pod.UID)
				}
			}
		},
		Gone: func(o runtime.Object) {
			if object, ok := w.toShown(o); ok {
				w.show(cycle.Gone{Kind: kind, Object: object}, feed.SizeOf(o))
				w.podStatuses.forgetObject(object.GetUID()) // called last, because it may end a wait of the core
				w.groupStatuses.forgetObject(object.GetUID())
			}
		},
	}
}

// beginLeading lets the core decide, once this scheduler has been elected and has then listed all
// pods and resource claims. Its watches may not have shown all bindings and allocations of the
// previous leader yet; decisions based on that would fill nodes, and allocate devices, twice. A
// leader's other writes are refused when they are outdated.
func (w *watches) beginLeading() {
	if w.stale.Add(-1) == 0 {
		w.see(cycle.Led{})
	}
}

// toShown returns an object in the form for the core, stripped if there is a journal. ok is false
// if o is not an object.
func (w *watches) toShown(o runtime.Object) (object metav1.Object, ok bool) {
	if object, ok = o.(metav1.Object); ok && w.strips() {
		object = journal.Stripped(object)
	}
	return object, ok
}
