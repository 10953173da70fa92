// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/pacing"
)

// watches passes the API server's objects of each kind to the core. All feeds are created before
// the scheduler runs. A kind that the API server does not serve yet has a feed that waits until it
// is served.
//
// A kind is announced to the core (cycle.Follows) before its feed begins, because the core decides
// pods only after every announced kind has been listed.
type watches struct {
	client                      kubernetes.Interface
	see                         func(cycle.Event)
	show                        func(e cycle.Event, size int) // like see, for events with an object; see loop.Loop.Show
	life                        *lifetime
	strips                      func() bool     // reports whether the core gets objects stripped for a journal
	lead                        <-chan struct{} // Options.Lead; nil: this scheduler leads from the start
	shadows, groups, taintRules bool            // whether this scheduler is a shadow, and whether optional kinds are watched
	composites, gentle          bool
	podStatuses                 *statuses[*statusWrite]
	groupStatuses               *statuses[cycle.WriteGroup]

	stale atomic.Int32 // number of kinds to list again before this scheduler leads
	kinds []cycle.Kind // kinds of feeds, except for feeds that wait for their kind
	feeds []func(context.Context)
}

// addFeeds adds a feed for each kind. To determine which kinds the API server serves, it may send
// requests, and retry them until there is a response or the scheduler stops.
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

	if w.gentle {
		followIfListed[schedulingv1.PriorityClassList](ctx, w, cycle.PriorityClasses, w.client.SchedulingV1())
	}
	w.watchRooms(ctx)
	if err := w.watchGroups(ctx); err != nil {
		return err
	}
	return w.watchDevices(ctx)
}

// leaseAgain is the interval between attempts to read the Lease of watchRooms while the API server
// refuses that. An API server that has just started may refuse a request that it allows later.
const leaseAgain = 5 * time.Minute

// watchRooms watches the Lease that records the reservations for moved pods. Pods are decided only
// after the Lease has been read; otherwise reservations could be lost at a restart. If the
// permission to read the Lease is missing, pods are scheduled without these reservations.
func (w *watches) watchRooms(ctx context.Context) {
	if w.shadows {
		return
	}
	// The Lease is listed by its name, because the permission to list Leases is restricted to this
	// name.
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
			if !pacing.Sleep(ctx, leaseAgain) {
				return
			}
			asking, cancel := context.WithTimeout(ctx, readWithin)
			ask(asking)
			cancel()
		}
		w.see(cycle.Follows{Kinds: kinds})
		run(ctx)
	})
}

// listOf is a pointer to a list type. It lets callers of followKind give only the list type; the
// pointer type is inferred.
type listOf[L any] interface {
	*L
	runtime.Object
}

// group is a client for an API group.
type group interface{ RESTClient() rest.Interface }

// followKind adds a kind and its feed.
func followKind[L any, P listOf[L]](w *watches, kind cycle.Kind, client group) {
	w.kinds, w.feeds = append(w.kinds, kind), append(w.feeds, feedOf[L, P](w, kind, client))
}

// feedOf returns a feed that passes all objects of a kind to the core.
func feedOf[L any, P listOf[L]](w *watches, kind cycle.Kind, client group) func(context.Context) {
	resource := string(kind) // kinds have the names of resources
	source := feed.Without(feed.ManagedFields, client.RESTClient(), metav1.NamespaceAll, resource, func() runtime.Object { return P(new(L)) })
	if kind == cycle.Nodes {
		source = feed.WithoutHeartbeats(client.RESTClient())
	}
	var fresh func()
	// Decisions allocate resources of nodes and devices, so pods and claims must be listed again;
	// see beginLeading.
	if w.lead != nil && (kind == cycle.Pods || kind == cycle.ResourceClaims) {
		source.Anew, fresh = w.lead, w.beginLeading
		w.stale.Add(1)
	}
	sink := w.newSink(kind)
	sink.Fresh = fresh
	return func(ctx context.Context) { feed.Run(ctx, source, sink) }
}

// newSink returns a sink that passes the objects of a kind to the core. It also drops pending
// status writes of bound or deleted pods, and of deleted groups.
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
				w.podStatuses.forgetObject(object.GetUID()) // called after show, because it may send an Answered event
				w.groupStatuses.forgetObject(object.GetUID())
			}
		},
	}
}

// beginLeading is called when pods or resource claims have been listed after this scheduler was
// elected. When both have been listed, the core begins to decide pods. The lists are required
// because watches may not have delivered all bindings and allocations of the previous leader yet,
// so that the same resources or devices could be allocated twice. Other outdated writes are refused
// by the API server.
func (w *watches) beginLeading() {
	if w.stale.Add(-1) == 0 {
		w.see(cycle.Led{})
	}
}

// toShown returns the object to pass to the core, which is stripped if the journal requires that.
// ok is false if o is not an API object.
func (w *watches) toShown(o runtime.Object) (object metav1.Object, ok bool) {
	if object, ok = o.(metav1.Object); ok && w.strips() {
		object = journal.Stripped(object)
	}
	return object, ok
}

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
	if w.taintRules { // which an API server before v1.37 does not serve
		followIfListed[resourcev1.DeviceTaintRuleList](ctx, w, cycle.DeviceTaintRules, w.client.ResourceV1())
	}
	return nil
}

// followIfListed adds a kind and its feed if the kind can be listed. Otherwise, it adds a feed that
// waits until the kind is served and the permission is granted, and pods are scheduled without it.
func followIfListed[L any, P listOf[L]](ctx context.Context, w *watches, kind cycle.Kind, client group) {
	var err error
	w.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		err = tryList(ctx, kind, client)
		return isAnswered(err)
	})
	if err == nil {
		followKind[L, P](w, kind, client)
		return
	}
	klog.FromContext(ctx).Info("A kind is not followed: it cannot be listed", "kind", kind, "err", err)
	w.feeds = append(w.feeds, func(ctx context.Context) { awaitKind[L, P](ctx, w, kind, client) })
}

// awaitKind waits until a kind can be listed, and then runs its feed.
func awaitKind[L any, P listOf[L]](ctx context.Context, w *watches, kind cycle.Kind, client group) {
	try := func(ctx context.Context) error { return tryList(ctx, kind, client) }
	w.awaitKinds(ctx, string(kind), try, func() ([]cycle.Kind, []func(context.Context)) {
		return []cycle.Kind{kind}, []func(context.Context){feedOf[L, P](w, kind, client)}
	})
}

// tryList returns nil if a kind can be listed.
func tryList(ctx context.Context, kind cycle.Kind, client group) error {
	return client.RESTClient().Get().Resource(string(kind)).Param("limit", "1").Do(ctx).Error()
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

// awaitDevices waits until the device kinds can be listed, and then runs their feeds. It does the
// same for DeviceTaintRules.
func (w *watches) awaitDevices(ctx context.Context) {
	var rules sync.WaitGroup
	defer rules.Wait()
	w.awaitKinds(ctx, "devices", w.listsDevices, func() ([]cycle.Kind, []func(context.Context)) {
		if w.taintRules {
			rules.Go(func() {
				awaitKind[resourcev1.DeviceTaintRuleList](ctx, w, cycle.DeviceTaintRules, w.client.ResourceV1())
			})
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

	klog.FromContext(ctx).Info("The API server serves " + what + " now")
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

// lifetime holds the contexts that bound the scheduler's work. Run sets them before it starts any
// goroutine.
type lifetime struct {
	running   context.Context // ends when the scheduler stops; no work begins after that
	finishing context.Context // ends finishWithin later; until then, work in progress may finish
}

// retryUntilStopped calls try until it returns true or the scheduler stops. Each call has a timeout
// of readWithin; the pauses between calls double from firstPause to lastPause.
func (l *lifetime) retryUntilStopped(ctx context.Context, try func(context.Context) bool) {
	once := func() bool {
		ctx, cancel := context.WithTimeout(ctx, readWithin)
		defer cancel()
		return try(ctx)
	}
	for pause := firstPause; !once() && l.sleepAbout(pause); pause = min(2*pause, lastPause) {
	}
}

// sleepAbout sleeps for about d, and returns false if the scheduler stops. Because of the jitter,
// requests that failed together are not retried together.
func (l *lifetime) sleepAbout(d time.Duration) bool {
	return pacing.Sleep(l.running, d/2+rand.N(d))
}
