// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simnodes

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// Options configures Run. Ready and Log must be set.
type Options struct {
	Shape simkubelet.Shape
	// Workers bounds the requests in flight for pods and, separately, those for heartbeats, which
	// take precedence: a burst of pods must not make nodes look dead.
	Workers int
	// Ready is called once, when all nodes are registered.
	Ready func(nodes int, took time.Duration)
	Log   *slog.Logger
}

// Client returns a client for Run. It uses protobuf, and has no rate limit apart from the number of
// workers. A client-side limit would queue heartbeats behind pods.
func Client(cfg *rest.Config) (kubernetes.Interface, error) {
	// The caller's configuration is not changed.
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(cfg)
}

// Run simulates the nodes until ctx ends. It leaves them in the cluster, where their heartbeats
// stop like those of machines without power; the next Run takes them over.
//
// One goroutine owns the fleet (runLoop). Watches send it events, and the workers of three lanes
// carry out its actions and send it their outcomes; so the fleet needs no lock, and never waits for
// the API server.
func Run(ctx context.Context, client kubernetes.Interface, opts Options) error {
	began := time.Now()
	existing, version, err := listNodes(ctx, client, &opts.Shape)
	switch {
	case ctx.Err() != nil: // stopped before the start
		return nil
	case err != nil:
		return err
	}
	if err := checkPlayer(existing, &opts.Shape); err != nil {
		return err
	}
	r := &runner{
		fleet:  simkubelet.New(opts.Shape),
		events: make(chan event, mostWaiting),
		done:   make(chan result, mostWaiting),
		log:    opts.Log,
	}
	send := &sender{client: client, leases: map[string]*knownLease{}, log: opts.Log}
	group, ctx := errgroup.WithContext(ctx)
	r.heartbeats = startLane(ctx, group, max(opts.Workers, 4), nil, send.sendAction, r.done)
	r.podWrites = startLane(ctx, group, max(opts.Workers, 4), r.heartbeats, send.sendAction, r.done)
	// Two workers are enough for events, which may be dropped.
	r.reports = startLane(ctx, group, 2, r.heartbeats, send.sendAction, r.done)
	// The feeds list the nodes themselves, so the list above need not be the newest.
	watchNodes(ctx, group, client, &opts.Shape, r.events)
	watchPods(ctx, group, client, &opts.Shape, r.events)
	registered := make(chan struct{})
	group.Go(func() error {
		// Apply the list before Start, which registers the missing nodes.
		r.fleet.NodesListed(existing, version, time.Now())
		if err := r.fleet.Start(time.Now()); err != nil {
			return err
		}
		r.runLoop(ctx, opts.Shape.Count, func() { close(registered) })
		return nil
	})
	group.Go(func() error {
		select {
		case <-registered:
		case <-ctx.Done():
			return nil
		}
		// The annotation is on the first node, which exists only now.
		if opts.Shape.Count > 0 {
			if err := signAsPlayer(ctx, client, &opts.Shape); err != nil {
				opts.Log.Warn("could not record which process simulates the nodes", "err", err)
			}
		}
		opts.Ready(opts.Shape.Count, time.Since(began))
		return nil
	})
	return group.Wait()
}

// mostWaiting is the capacity of the channels to the loop. It is small because each element may
// hold an object of up to the API server's size limit. A full channel slows down watches and
// workers, but loses nothing.
const mostWaiting = 64

// listNodes returns the cluster's nodes and their resource version. It refuses to simulate a real
// node, whose kubelet would interfere. It gives up after ten seconds, with an error about the
// unreachable cluster.
func listNodes(ctx context.Context, client kubernetes.Interface, shape *simkubelet.Shape) ([]*v1.Node, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", connect.WithRemedy(err)
	}

	nodes := make([]*v1.Node, len(list.Items))
	for i := range list.Items {
		node := &list.Items[i]
		nodes[i] = node
		_, simulated := node.Labels[simkubelet.LabelSimulated]
		if !simulated && shape.Names(node.Name) && !shape.Beyond(node.Name) {
			return nil, "", fmt.Errorf("node %s exists and is not simulated: choose other names with --name-prefix", node.Name)
		}
	}

	return nodes, list.ResourceVersion, nil
}

// runner owns the fleet. Only the goroutine of runLoop touches it.
type runner struct {
	fleet  *simkubelet.Fleet
	events chan event
	done   chan result
	log    *slog.Logger

	heartbeats, podWrites, reports *lane
}

// event is a watch event. It is a function, because each kind of event has different arguments.
type event func(f *simkubelet.Fleet, now time.Time)

// result is the outcome of an action, with the returned object, or nil.
type result struct {
	action  simkubelet.Action
	outcome simkubelet.Outcome
	object  any
}

// runLoop passes events to the fleet one at a time, and dispatches the resulting actions. ready is
// called once, when count nodes are registered.
func (r *runner) runLoop(ctx context.Context, count int, ready func()) {
	r.dispatchActions()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if ready != nil && r.fleet.Live() == count {
			ready()
			ready = nil
		}

		// If no timer is set, the waiting time is arbitrary.
		wait := time.Hour
		if at, ok := r.fleet.Next(); ok {
			wait = time.Until(at)
		}

		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case e := <-r.events:
			e(r.fleet, time.Now())
		case d := <-r.done:
			r.fleet.Done(d.action, d.outcome, d.object, time.Now())
		case <-timer.C:
			r.fleet.Tick(time.Now())
		}

		r.dispatchActions()
	}
}

// maxReports bounds the queue of events about pods, so that a flood of them does not fill the
// memory. Such events may be dropped, because the status carries the same information.
const maxReports = 2000

// dispatchActions puts the fleet's actions into the lanes. Registrations and reports of node status
// take precedence like heartbeats.
func (r *runner) dispatchActions() {
	for _, a := range r.fleet.Take() {
		switch a.Kind {
		case simkubelet.PatchPod, simkubelet.DeletePod:
			r.podWrites.addAction(a)
		case simkubelet.Report:
			if r.reports.len() < maxReports {
				r.reports.addAction(a)
			}
		default:
			r.heartbeats.addAction(a)
		}
	}
}

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
