// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// look is the interval between checks of deadlines and rates: a tenth of Same, to limit its effect
// on the measurements.
const look = 500 * time.Millisecond

// Follower follows a cluster and compares the decisions of both sides. It only lists and watches.
// One goroutine, Run's, owns both comparisons; feeds queue their steps in a channel, and block
// while it is full.
type Follower struct {
	Ledger *Ledger

	client    kubernetes.Interface     // lists and watches only
	evictions *Evictions               // nil if not compared
	nodes     *Nodes                   // nil if not compared
	steps     chan func(now time.Time) // queue for the goroutine of Run, in the order of arrival
	listed    [3]atomic.Bool           // pods, nodes, leases
	sight     map[string]bool          // broken watches; owned by the goroutine of Run
}

// NewFollower returns a follower that compares evictions, node health, or both. Run starts it.
func NewFollower(client kubernetes.Interface, evictions, health bool, options nodehealth.Options) *Follower {
	f := &Follower{Ledger: NewLedger(time.Now()), client: client, steps: make(chan func(time.Time), 1024), sight: map[string]bool{}}
	f.Ledger.OnDecision = countDecision
	if evictions {
		f.evictions = NewEvictions(f.Ledger, func(time.Time) time.Time { return time.Now().Round(0) })
	}
	if health {
		f.nodes = NewNodes(f.Ledger, options)
	}
	return f
}

// Synced reports whether all compared kinds have been listed at least once. Any goroutine may call
// it.
func (f *Follower) Synced() bool {
	return (f.evictions == nil || f.listed[0].Load()) && f.listed[1].Load() && (f.nodes == nil || f.listed[2].Load())
}

// Run compares until the context ends.
func (f *Follower) Run(ctx context.Context) {
	var feeds sync.WaitGroup
	defer feeds.Wait()
	core := f.client.CoreV1().RESTClient()
	feeds.Go(func() {
		feed.Run(ctx, feed.Of(core, "", "nodes", func() runtime.Object { return &v1.NodeList{} }), f.nodeSink(ctx))
	})
	if f.evictions != nil {
		pods := feed.Of(core, "", "pods", func() runtime.Object { return &v1.PodList{} })
		pods.Selector = "spec.nodeName!="
		feeds.Go(func() { feed.Run(ctx, pods, f.podSink(ctx)) })
	}

	if f.nodes != nil {
		leases := feed.Of(f.client.CoordinationV1().RESTClient(), v1.NamespaceNodeLease, "leases",
			func() runtime.Object { return &coordinationv1.LeaseList{} })
		feeds.Go(func() { feed.Run(ctx, leases, f.leaseSink(ctx)) })
	}

	ticks := time.NewTicker(look)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case step := <-f.steps:
			step(time.Now())
		// Both comparisons judge on Ticks, after all earlier events have been applied.
		case now := <-ticks.C:
			f.stepEvictions(now, eviction.Tick{})
			f.stepHealth(now, nodehealth.Tick{})
		}
	}
}

// stepEvictions and stepHealth apply an event, if the comparison is enabled.
func (f *Follower) stepEvictions(now time.Time, event eviction.Event) {
	if f.evictions != nil {
		f.evictions.Step(now, event)
	}
}

func (f *Follower) stepHealth(now time.Time, event nodehealth.Event) {
	if f.nodes != nil {
		f.nodes.Step(now, event)
	}
}

// runStep runs a step on the goroutine of Run.
func (f *Follower) runStep(ctx context.Context, step func(now time.Time)) {
	select {
	case f.steps <- step:
	case <-ctx.Done():
	}
}

// podSink passes on scheduled pods.
func (f *Follower) podSink(ctx context.Context) feed.Sink {
	pod := func(event eviction.Event) { f.runStep(ctx, func(now time.Time) { f.stepEvictions(now, event) }) }
	return feed.Sink{
		Listing: func() { pod(eviction.PodsListing{}) },
		Listed:  func() { pod(eviction.PodsListed{}); f.listed[0].Store(true) },
		Seen:    func(o runtime.Object) { pod(eviction.PodSeen{Pod: eviction.PodOf(o.(*v1.Pod))}) },
		Gone: func(o runtime.Object) {
			last := eviction.PodOf(o.(*v1.Pod))
			last.Terminating = true // includes pods deleted without a grace period
			pod(eviction.PodSeen{Pod: last})
			pod(eviction.PodGone{Name: last.Name, UID: last.UID})
		},
	}
}

// nodeSink passes nodes to both comparisons in one step, so that they never have different states
// of a node.
func (f *Follower) nodeSink(ctx context.Context) feed.Sink {
	both := func(e eviction.Event, h nodehealth.Event) {
		f.runStep(ctx, func(now time.Time) { f.stepEvictions(now, e); f.stepHealth(now, h) })
	}
	return feed.Sink{
		Listing: func() { both(eviction.NodesListing{}, nodehealth.NodesListing{}) },
		Listed:  func() { both(eviction.NodesListed{}, nodehealth.NodesListed{}); f.listed[1].Store(true) },
		Seen: func(o runtime.Object) {
			node := o.(*v1.Node)
			both(eviction.NodeSeen{Node: eviction.NodeOf(node)}, nodehealth.NodeSeen{Node: nodehealth.NodeOf(node)})
		},
		Gone: func(o runtime.Object) {
			name := o.(*v1.Node).Name
			both(eviction.NodeGone{Name: name}, nodehealth.NodeGone{Name: name})
		},
		Lost: func() { f.noteBlind(ctx, "nodes", true) },
		Back: func() { f.noteBlind(ctx, "nodes", false) },
	}
}

// leaseSink passes on Leases, the heartbeats of nodes.
func (f *Follower) leaseSink(ctx context.Context) feed.Sink {
	see := func(event nodehealth.Event) { f.runStep(ctx, func(now time.Time) { f.stepHealth(now, event) }) }
	return feed.Sink{
		Listing: func() {},
		Listed:  func() { see(nodehealth.LeasesListed{}); f.listed[2].Store(true) },
		Seen: func(o runtime.Object) {
			if lease := o.(*coordinationv1.Lease); lease.Spec.RenewTime != nil {
				see(nodehealth.LeaseSeen{Name: lease.Name, ResourceVersion: lease.ResourceVersion, Renewed: lease.Spec.RenewTime.Time})
			}
		},
		Gone: func(o runtime.Object) { see(nodehealth.LeaseGone{Name: o.(*coordinationv1.Lease).Name}) },
		Lost: func() { f.noteBlind(ctx, "leases", true) },
		Back: func() { f.noteBlind(ctx, "leases", false) },
	}
}

// noteBlind records that the watch of nodes or Leases is broken, or works again. While one of the
// watches is broken, heartbeats may be missed.
func (f *Follower) noteBlind(ctx context.Context, watch string, lost bool) {
	f.runStep(ctx, func(now time.Time) {
		if f.sight[watch] = lost; f.sight["nodes"] || f.sight["leases"] {
			f.stepHealth(now, nodehealth.Blind{})
			return
		}
		f.stepHealth(now, nodehealth.Sighted{})
	})
}
