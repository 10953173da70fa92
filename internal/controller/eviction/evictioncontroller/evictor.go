// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/kube/loop"
)

// Name and DeviceName are the component's names for node taints and for device taints, as in
// kube-controller-manager's --controllers.
const (
	Name       = controllerjournal.Eviction
	DeviceName = "device-taint-eviction-controller"
)

// Events holds the logs for events of pods evicted because of taints of their nodes, and of their
// devices. If a log is nil, the taints of that kind are ignored and evict no pods.
type Events struct{ Nodes, Devices *eventlog.Log }

// Evictor evicts pods from tainted nodes and devices. It runs the Core in a loop (package loop):
// feeds put events into the loop's inbox, the loop's goroutine passes them to the Core, and each
// resulting action is a request on a separate goroutine.
type Evictor struct {
	*loop.Loop[eviction.Event, eviction.Action]
	requests *requests                     // carries out the core's actions
	events   Events                        // a nil log disables the feeds of its kind
	core     *eviction.Core                // belongs to the loop's goroutine
	journal  *controllerjournal.OfEviction // nil: none
	wall     time.Time                     // wall-clock time of the current step

	podsListed, nodesListed atomic.Bool    // the first list is complete; see Synced
	devicesListed           [3]atomic.Bool // by kind
	reported                eviction.Stats // counts already added to the metrics
}

// New returns an evictor. The client should have no rate limit, because the options bound the
// requests in flight, and deletes would wait behind reads in a rate limiter.
func New(client kubernetes.Interface, events Events, options eviction.Options) *Evictor {
	e := &Evictor{
		Loop:     loop.New[eviction.Event, eviction.Action](Name),
		requests: newRequests(client.CoreV1().RESTClient(), client.ResourceV1().RESTClient()),
		events:   events,
	}
	// The loop's clock is never adjusted; times in objects are wall-clock times.
	options.Wall = func(time.Time) time.Time { return e.wall }
	e.core = eviction.New(options)
	e.Step, e.Tick, e.EverySecond, e.Do = e.stepCore, eviction.Tick{}, e.updateMetrics, e.runAction
	e.Wake = loop.Idle(e.core.Wake)
	return e
}

// Record makes the evictor record the core's events and actions. It must be called before Run.
func (e *Evictor) Record(j *controllerjournal.OfEviction) {
	e.journal = j
	j.Save = func() any { return e.core.Save() }
}

// stepCore passes an event to the core. The wall clock is read once per step, so that the core and
// its journal see the same time.
func (e *Evictor) stepCore(now time.Time, event eviction.Event) []eviction.Action {
	// Round removes the monotonic reading, which the journal does not record: a replay must compute
	// the same times.
	e.wall = time.Now().Round(0).UTC()
	actions := e.core.Step(now, event)
	if e.journal != nil {
		e.journal.Add(now, e.wall, event, actions)
	}
	return actions
}

// Synced reports whether all followed kinds have been listed. Any goroutine may call it.
func (e *Evictor) Synced() bool {
	if !e.podsListed.Load() || e.events.Nodes != nil && !e.nodesListed.Load() {
		return false
	}
	for i := range e.devicesListed {
		if e.events.Devices != nil && !e.devicesListed[i].Load() {
			return false
		}
	}
	return true
}

// Run evicts until the context ends, and returns once all requests have completed. An Evictor can
// be run only once.
func (e *Evictor) Run(ctx context.Context) {
	pods := feed.Without(feed.ManagedFields, e.requests.client, "", "pods", func() runtime.Object { return &v1.PodList{} })
	pods.Selector = "spec.nodeName!=" // pods that are not bound are not evicted
	feeds := []func(context.Context){func(ctx context.Context) { feed.Run(ctx, pods, e.podSink()) }}
	if e.events.Nodes != nil {
		feeds = append(feeds, func(ctx context.Context) { feed.Run(ctx, nodesOf(e.requests.client), e.nodeSink()) })
	}
	if e.events.Devices != nil {
		feeds = append(feeds, e.deviceFeeds()...)
	}
	e.Loop.Run(ctx, feeds...)
}

// nodesOf returns the source of nodes, without labels and status, which the core does not need.
func nodesOf(client rest.Interface) feed.Source {
	unused := feed.Fields{2: {1: {11: nil}, 3: nil}}
	return feed.Without(unused, client, "", "nodes", func() runtime.Object { return &v1.NodeList{} })
}

// runAction adds the event of a Record to its log, which does not block, and returns nil. For any
// other action, runAction returns a function that carries out the request.
func (e *Evictor) runAction(ctx context.Context, action eviction.Action) func(context.Context) eviction.Event {
	if event, ok := action.(eviction.Record); ok {
		klog.FromContext(ctx).V(2).Info(event.Message(), "pod", klog.KRef(event.Name.Namespace, event.Name.Name), "uid", event.UID)
		log, reason := e.events.Nodes, "TaintManagerEviction"
		if event.Device {
			log, reason = e.events.Devices, "DeviceTaintManagerEviction"
		}
		log.Add(v1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: event.Name.Namespace, Name: event.Name.Name, UID: event.UID,
		}, v1.EventTypeNormal, reason, event.Message())
		return nil
	}
	return func(ctx context.Context) eviction.Event { return e.requests.carryOut(ctx, action) }
}

// podSink converts pods to the core's representation before they are queued in the inbox.
func (e *Evictor) podSink() feed.Sink {
	var known tolerations // used by the feed's goroutine alone
	return feed.Sink{
		Listing: func() { e.See(eviction.PodsListing{}) },
		Listed:  func() { e.See(eviction.PodsListed{}); e.podsListed.Store(true) },
		Seen: func(o runtime.Object) {
			pod := eviction.PodOf(o.(*v1.Pod))
			// The pods of a workload have equal tolerations, which need to be kept only once.
			pod.Tolerations = known.shareList(pod.Tolerations)
			e.Show(eviction.PodSeen{Pod: pod}, feed.SizeOf(o))
		},
		Gone: func(o runtime.Object) {
			pod := eviction.PodOf(o.(*v1.Pod))
			e.See(eviction.PodGone{Name: pod.Name, UID: pod.UID})
		},
	}
}

// nodeSink converts nodes to the core's representation.
func (e *Evictor) nodeSink() feed.Sink {
	return feed.Sink{
		Listing: func() { e.See(eviction.NodesListing{}) },
		Listed:  func() { e.See(eviction.NodesListed{}); e.nodesListed.Store(true) },
		Seen:    func(o runtime.Object) { e.Show(eviction.NodeSeen{Node: eviction.NodeOf(o.(*v1.Node))}, feed.SizeOf(o)) },
		Gone:    func(o runtime.Object) { e.See(eviction.NodeGone{Name: o.(*v1.Node).Name}) },
	}
}
