// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodecontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/kube/loop"
)

// Name is the component's name in kube-controller-manager's --controllers.
const Name = controllerjournal.NodeHealth

// Controller turns the state of nodes into taints. It runs the Core in a loop (package loop):
// watches of nodes and Leases put events into the loop's inbox, the loop's goroutine passes them to
// the Core, and each resulting write runs on a separate goroutine.
type Controller struct {
	*loop.Loop[nodehealth.Event, nodehealth.Action]
	client   kubernetes.Interface
	requests *requests                       // carries out the core's writes and reads
	events   *eventlog.Log                   // about nodes
	core     *nodehealth.Core                // belongs to the loop's goroutine
	journal  *controllerjournal.OfNodeHealth // nil: none
	wall     time.Time                       // wall-clock time of the current step
	stepped  time.Time                       // time of the last step
	away     time.Duration                   // a longer gap between steps means that the process was stopped

	nodesListed, leasesListed atomic.Bool // the first list is complete; see Synced
	sight                     sight
	reported                  map[string]int // evictions already added to the metrics, by zone
}

// New returns a controller. The client should have no rate limit: options bound the requests in
// flight.
//
// If more than away passes between two steps, the process was stopped: the core is woken every
// MonitorPeriod, and away is at least twice as long.
func New(client kubernetes.Interface, events *eventlog.Log, options nodehealth.Options) *Controller {
	c := &Controller{
		Loop:     loop.New[nodehealth.Event, nodehealth.Action](Name),
		client:   client,
		requests: newRequests(client, events),
		events:   events,
		reported: map[string]int{},
		away:     max(2*options.MonitorPeriod, options.MonitorGracePeriod/2),
	}
	// The loop's clock is never adjusted; times in objects are wall-clock times.
	options.Wall = func(time.Time) time.Time { return c.wall }
	c.core = nodehealth.New(options)
	c.Step, c.Tick, c.EverySecond, c.Do, c.Wake = c.step, nodehealth.Tick{}, c.updateMetrics, c.do, c.core.Wake
	return c
}

// Record makes the controller record the core's events and actions. It must be called before Run.
func (c *Controller) Record(j *controllerjournal.OfNodeHealth) {
	c.journal = j
	j.Save = func() any { return c.core.Save() }
}

// Synced reports whether all nodes and Leases have been listed.
func (c *Controller) Synced() bool { return c.nodesListed.Load() && c.leasesListed.Load() }

// Run keeps taints up to date until the context ends, and returns once all writes have completed. A
// Controller can be run only once.
func (c *Controller) Run(ctx context.Context) {
	c.Loop.Run(ctx,
		func(ctx context.Context) { feed.Run(ctx, nodesOf(c.client), c.nodeSink()) },
		func(ctx context.Context) { feed.Run(ctx, leasesOf(c.client), c.leaseSink()) },
	)
}

// nodesOf returns the source of nodes, without fields that the core does not need.
func nodesOf(client kubernetes.Interface) feed.Source {
	unused := feed.Fields{2: {
		// metadata: annotations, owners, finalizers, managed fields
		1: {12: nil, 13: nil, 14: nil, 17: nil},
		// status: all but phase and conditions
		3: {1: nil, 2: nil, 5: nil, 6: nil, 7: nil, 8: nil, 9: nil, 10: nil, 11: nil, 12: nil, 13: nil, 14: nil},
	}}
	return feed.Without(unused, client.CoreV1().RESTClient(), "", "nodes", func() runtime.Object { return &v1.NodeList{} })
}

// leasesOf returns the source of the nodes' Leases, without fields that the core does not need.
func leasesOf(client kubernetes.Interface) feed.Source {
	// metadata: all but name and version; spec: holder, time of acquisition
	unused := feed.Fields{2: {1: {3: nil, 5: nil, 8: nil, 11: nil, 12: nil, 13: nil, 14: nil, 17: nil}, 2: {1: nil, 3: nil}}}
	return feed.Without(unused, client.CoordinationV1().RESTClient(), v1.NamespaceNodeLease, "leases",
		func() runtime.Object { return &coordinationv1.LeaseList{} })
}

// step passes an event to the core, preceded by Away if the process was stopped: otherwise a
// resumed machine, or a container starved of CPU, would find all nodes silent.
func (c *Controller) step(now time.Time, event nodehealth.Event) []nodehealth.Action {
	before := c.stepped
	c.stepped = now
	if !before.IsZero() && now.Sub(before) > c.away {
		return append(c.give(now, nodehealth.Away{From: before}), c.give(now, event)...)
	}
	return c.give(now, event)
}

// give steps the core, and measures the steps that examine all nodes.
func (c *Controller) give(now time.Time, event nodehealth.Event) []nodehealth.Action {
	began, passes := time.Now(), c.core.Passes()
	c.wall = began.Round(0).UTC()
	actions := c.core.Step(now, event)
	if c.core.Passes() > passes {
		passDuration.Observe(time.Since(began).Seconds())
	}
	if c.journal != nil {
		c.journal.Add(now, c.wall, event, actions)
	}
	return actions
}

// do carries out an action of the core if that does not block, and returns nil. For a read or a
// write, do returns the function that sends the request.
func (c *Controller) do(ctx context.Context, action nodehealth.Action) func(context.Context) nodehealth.Event {
	log := klog.FromContext(ctx)
	switch a := action.(type) {
	case nodehealth.Record:
		log.V(2).Info(a.Message, "node", klog.KRef("", a.Node), "reason", a.Reason)
		c.events.Add(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: a.Node, UID: a.UID}, v1.EventTypeNormal, a.Reason, a.Message)
		return nil
	case nodehealth.Dropped:
		droppedWrites.Inc()
		log.Info("A policy, webhook or controller drops a change that the API server accepts", "node", klog.KRef("", a.Node), "change", a.Write)
		c.events.Add(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: a.Node, UID: a.UID}, v1.EventTypeWarning, "WriteDropped",
			"The API server accepts a change of node "+a.Node+" and stores another one, so a policy, webhook or controller drops it: "+a.Write)
		return nil
	case nodehealth.StopMarking:
		c.requests.stopMarking(a.Ticket)
		return nil
	case nodehealth.ZoneChanged:
		log.Info("Zone changed to another state", "zone", nodehealth.ZoneName(a.Zone), "from", a.From, "to", a.To, "nodesPerSecond", a.Rate)
		return nil
	}

	if read, ok := action.(nodehealth.ReadLease); ok {
		return func(ctx context.Context) nodehealth.Event { return c.requests.readLease(ctx, read) }
	}
	log.V(2).Info("Writing", "write", action)
	if a, pods := action.(nodehealth.MarkPods); pods {
		return c.requests.marking(ctx, a)
	}

	return func(ctx context.Context) nodehealth.Event {
		began := time.Now()
		answer := c.requests.carryOut(ctx, action)
		writeDuration.Observe(time.Since(began).Seconds())
		return answer
	}
}

// nodeSink passes nodes to the core, and reports when their watch is broken.
func (c *Controller) nodeSink() feed.Sink {
	return feed.Sink{
		Listing: func() { c.See(nodehealth.NodesListing{}) },
		Listed:  func() { c.See(nodehealth.NodesListed{}); c.nodesListed.Store(true); c.polled("nodes") },
		Seen: func(o runtime.Object) {
			c.Show(nodehealth.NodeSeen{Node: nodehealth.NodeOf(o.(*v1.Node))}, feed.SizeOf(o))
		},
		Gone: func(o runtime.Object) { c.See(nodehealth.NodeGone{Name: o.(*v1.Node).Name}) },
		Lost: func() { c.lost("nodes") },
		Back: func() { c.back("nodes") },
	}
}

// leaseSink does the same for Leases. The core does not compare a list with the known Leases,
// because a missing Lease only means that there is no sign of life.
func (c *Controller) leaseSink() feed.Sink {
	return feed.Sink{
		Listing: func() {},
		Listed:  func() { c.See(nodehealth.LeasesListed{}); c.leasesListed.Store(true); c.polled("leases") },
		Seen: func(o runtime.Object) {
			// Unlike Show, See does not wait while the inbox is full. Leases are small.
			if lease := o.(*coordinationv1.Lease); lease.Spec.RenewTime != nil {
				c.See(*leaseOf(lease))
			}
		},
		Gone: func(o runtime.Object) { c.See(nodehealth.LeaseGone{Name: o.(*coordinationv1.Lease).Name}) },
		Lost: func() { c.lost("leases") },
		Back: func() { c.back("leases") },
	}
}

// sight records which watches are broken. Signs of life may be in a node's status or in its Lease,
// so silence counts only while both watches work.
type sight struct {
	mu   sync.Mutex
	lost map[string]*lostWatch
}

// lostWatch is a broken watch.
type lostWatch struct{ since, listed time.Time }

// lost records that a watch is broken. It is called when a watch breaks; back is called when the
// watch delivers changes again.
func (c *Controller) lost(watch string) {
	c.sight.mu.Lock()
	defer c.sight.mu.Unlock()
	if c.sight.lost == nil {
		c.sight.lost = map[string]*lostWatch{}
	}
	if c.sight.lost[watch] == nil {
		c.sight.lost[watch] = &lostWatch{since: time.Now()}
	}
	c.See(nodehealth.Blind{})
}

// polled is called after each list. If watches are refused but lists succeed, for example because
// of missing permissions, the lists provide the signs of life.
func (c *Controller) polled(watch string) {
	c.sight.mu.Lock()
	defer c.sight.mu.Unlock()
	now := time.Now()
	if lost := c.sight.lost[watch]; lost != nil {
		lost.listed = now
	}
	for _, lost := range c.sight.lost {
		if now.Sub(lost.listed) > listsWithin {
			return
		}
	}
	if len(c.sight.lost) > 0 {
		c.See(nodehealth.Polled{})
	}
}

const (
	// listsWithin is the maximum age of a list used instead of a broken watch.
	listsWithin = 45 * time.Second
	// blindFor is the time for which a watch may be broken before Blind returns an error, which
	// makes the replica unready.
	blindFor = time.Minute
)

// Blind returns an error if a watch has been broken for blindFor or longer: silent nodes are then
// detected late, by lists, or not at all.
func (c *Controller) Blind() error {
	c.sight.mu.Lock()
	defer c.sight.mu.Unlock()
	for _, watch := range slices.Sorted(maps.Keys(c.sight.lost)) {
		if lost := c.sight.lost[watch]; time.Since(lost.since) >= blindFor {
			judged := "silent nodes are not detected"
			if time.Since(lost.listed) < blindFor {
				judged = "silent nodes are detected late, by lists"
			}
			return fmt.Errorf("%s cannot be watched since %s: %s", watch, lost.since.UTC().Format(time.RFC3339), judged)
		}
	}
	return nil
}

// back records that a watch delivers changes again. When no watch is broken any more, the core gets
// Sighted.
func (c *Controller) back(watch string) {
	c.sight.mu.Lock()
	defer c.sight.mu.Unlock()
	if delete(c.sight.lost, watch); len(c.sight.lost) == 0 {
		c.See(nodehealth.Sighted{})
	}
}
