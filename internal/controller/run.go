// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/controller/controllershadow"
	"github.com/berth-k8s/berth/internal/controller/eviction/evictioncontroller"
	"github.com/berth-k8s/berth/internal/controller/evictionrequest/requestcontroller"
	"github.com/berth-k8s/berth/internal/controller/nodehealth/nodecontroller"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/lead"
	"github.com/berth-k8s/berth/internal/kube/memoryrelease"
	"github.com/berth-k8s/berth/internal/kube/serve"
)

// Controller holds the controllers and their endpoints. The controllers are created when this
// replica begins to lead; until then, the pointers are nil. The pointers are atomic because the
// endpoints, which are served from the start, read them.
type Controller struct {
	options Options
	config  *rest.Config // copied for each client

	elector *lead.Elector                              // nil with --shadow, which needs no leader
	server  *serve.Server                              // listens since New
	evictor atomic.Pointer[evictioncontroller.Evictor] // for the taints of nodes and of devices
	health  atomic.Pointer[nodecontroller.Controller]
	mover   atomic.Pointer[movecontroller.Mover]         // nil also between an error and the next start
	guard   atomic.Pointer[movecontroller.Mover]         // of held evictions; nil as mover
	asked   atomic.Pointer[requestcontroller.Controller] // responds to EvictionRequests

	follower *controllershadow.Follower // set with --shadow; then elector and the controllers are nil
}

// New returns a controller for the cluster of config. Its endpoints listen already, so that Address
// is known. It sends no requests to the API server before Run.
func New(config *rest.Config, options Options) (*Controller, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	c := &Controller{options: options, config: config}
	var err error
	if options.Shadow.On {
		err = c.newShadow()
	} else {
		c.elector, err = lead.New(c.clientConfig("berth-controller/leader-election", 20), options.Lead, nil)
	}

	if err != nil {
		return nil, err
	}
	if c.server, err = serve.Listen(serve.Options{Plain: options.Health}); err != nil {
		return nil, err
	}
	return c, nil
}

// Address returns the address of the endpoints, or "" without any.
func (c *Controller) Address() string { return c.server.PlainAddress() }

// Run leads, or waits as a standby, until the context ends. Run must be called only once. The
// endpoints outlive the context: they are served until all controllers have stopped.
func (c *Controller) Run(ctx context.Context) error {
	// serving outlives ctx, so that probes find the port open until the controllers have stopped.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan struct{})
	go func() {
		defer close(served)
		c.server.Run(serving, serve.Handlers{Plain: c.newHandler()}, nil)
	}()
	defer func() { stopServing(); <-served }()
	go memoryrelease.Run(serving)
	if c.follower != nil {
		return c.runShadow(ctx)
	}
	return c.elector.Run(ctx, c.runControllers)
}

// newHandler serves the endpoints and, for a shadow, its reports. They are served over plain HTTP
// without authentication, so they must not contain secrets.
func (c *Controller) newHandler() http.Handler {
	if c.follower == nil {
		return c.newEndpoints().Handler()
	}
	mux := http.NewServeMux()
	mux.Handle("/", c.newEndpoints().Handler())
	mux.HandleFunc("/shadow", c.serveShadow)
	return mux
}

// runControllers runs the controllers until the context ends. All are created before the first one
// runs: an error in one, such as an unwritable journal folder, must not leave half of them running.
// Each has separate clients, so that none waits for another's requests.
func (c *Controller) runControllers(ctx context.Context) error {
	var parts []func(context.Context)
	if c.options.evictsPods() {
		evictor, logs, err := c.newEvictor()
		if err != nil {
			return err
		}
		end, err := startJournal(c, evictioncontroller.Name, controllerjournal.ForEviction, c.options.Eviction, evictor.Record)
		if err != nil {
			return err
		}
		defer end()
		// From now on, the readiness check includes the evictor.
		c.evictor.Store(evictor)
		parts = append(append(parts, logs...), evictor.Run)
	}

	if c.options.isEnabled(nodecontroller.Name) {
		client, events, err := c.newClients(nodecontroller.Name, "node-controller")
		if err != nil {
			return err
		}
		health := nodecontroller.New(client, events, c.options.NodeHealth)
		end, err := startJournal(c, nodecontroller.Name, controllerjournal.ForNodeHealth, c.options.NodeHealth, health.Record)
		if err != nil {
			return err
		}
		defer end()
		c.health.Store(health)
		parts = append(parts, events.Run, health.Run)
	}

	if c.options.isEnabled(requestcontroller.Name) {
		client, err := c.newClient("berth-controller/"+requestcontroller.Name, -1)
		if err != nil {
			return err
		}
		asked := requestcontroller.New(client)
		c.asked.Store(asked)
		parts = append(parts, asked.Run)
	}

	if c.options.isEnabled(movecontroller.Name) {
		client, events, err := c.newClients(movecontroller.Name, "berth-rebalance")
		if err != nil {
			return err
		}
		parts = append(parts, events.Run, func(ctx context.Context) { c.runRebalance(ctx, client, events) })
	}

	if c.options.isEnabled(movecontroller.GuardName) {
		client, events, err := c.newClients(movecontroller.GuardName, "berth-"+movecontroller.GuardName)
		if err != nil {
			return err
		}
		parts = append(parts, events.Run, func(ctx context.Context) { c.runGuard(ctx, client, events) })
	}

	var running sync.WaitGroup
	for _, part := range parts {
		running.Go(func() { part(ctx) })
	}

	running.Wait()
	return nil
}

// newEvictor returns the evictor for the taints of nodes, of devices, or both, and its event logs.
// One Evictor handles both kinds of taints, since a pod must be evicted only once, for the first
// due taint; upstream has two controllers unaware of each other.
func (c *Controller) newEvictor() (e *evictioncontroller.Evictor, logs []func(context.Context), err error) {
	var client kubernetes.Interface
	var to evictioncontroller.Events
	// Each kind of taint has a separate event log, because its events have a different source
	// component.
	for name, log := range map[string]**eventlog.Log{evictioncontroller.Name: &to.Nodes, evictioncontroller.DeviceName: &to.Devices} {
		if !c.options.isEnabled(name) {
			continue
		}
		if client, *log, err = c.newClients(evictioncontroller.Name, name); err != nil {
			return nil, nil, err
		}
		logs = append(logs, (*log).Run)
	}
	return evictioncontroller.New(client, to, c.options.Eviction), logs, nil
}

// newClients returns a controller's client, which needs no rate limit because its requests in
// flight are bounded, and an event log with a separate client, so that events cannot delay the
// controller.
func (c *Controller) newClients(name, source string) (kubernetes.Interface, *eventlog.Log, error) {
	client, err := c.newClient("berth-controller/"+name, -1)
	if err != nil {
		return nil, nil, err
	}
	events, err := c.newClient("berth-controller/"+name+"-events", -1)
	if err != nil {
		return nil, nil, err
	}
	return client, eventlog.New(events, source), nil
}

// newClient returns a client that refuses requests as soon as this replica no longer leads
// (lead.Guard): a late request could contradict the next leader. qps of -1 means unlimited.
func (c *Controller) newClient(agent string, qps float32) (kubernetes.Interface, error) {
	config := c.clientConfig(agent, qps)
	lead.Guard(config, c.elector.Over)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", agent, err)
	}
	return client, nil
}

// clientConfig returns the configuration for a client with that user agent and rate. It requests
// protobuf, and accepts JSON for kinds without protobuf.
func (c *Controller) clientConfig(agent string, qps float32) *rest.Config {
	config := rest.CopyConfig(c.config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + agent
	config.QPS, config.Burst = qps, int(qps)
	return config
}

// newEndpoints returns the health checks, metrics, configuration and flags of the controllers.
func (c *Controller) newEndpoints() *serve.Endpoints {
	// The registry is separate, because a process may have several Controllers, as in tests.
	own := metrics.NewKubeRegistry()
	own.MustRegister(Metrics()...)
	var live []serve.Check
	// A shadow has no leader election.
	if c.elector != nil {
		live = []serve.Check{{Name: "leaderElection", Failed: c.elector.Alive}}
	}
	return &serve.Endpoints{
		Component: "berth-controller",
		Live:      live,
		Ready:     []serve.Check{{Name: "watches", Failed: func(*http.Request) error { return c.notReady() }}},
		Metrics:   own,
		Config:    c.options.configzMap,
		Flags:     c.options.flags,
		Profiling: c.options.Profiling,
	}
}

// Metrics returns the metrics of all controllers.
func Metrics() []metrics.Registerable {
	return slices.Concat(evictioncontroller.Metrics(), nodecontroller.Metrics(), movecontroller.Metrics(), controllershadow.Metrics(),
		[]metrics.Registerable{lostRecords})
}

// notReady returns the missing condition, or nil. A standby replica is ready: otherwise a rollout
// would wait until the standby leads, although the leader is meant to stay.
func (c *Controller) notReady() error {
	if c.follower != nil {
		if !c.follower.Synced() {
			return errors.New("shadow: not all pods, nodes and leases have been seen yet")
		}
		return nil
	}
	if !c.elector.Leading() {
		// Without an election there are no standby replicas, so this replica has not started yet.
		if c.options.Lead.Elect {
			return nil
		}
		return errors.New("not started")
	}

	if c.options.evictsPods() {
		if e := c.evictor.Load(); e == nil || !e.Synced() {
			return errors.New("taint eviction has not seen all pods, nodes and devices yet")
		}
	}

	if c.options.isEnabled(nodecontroller.Name) {
		if h := c.health.Load(); h == nil || !h.Synced() {
			return errors.New(nodecontroller.Name + " has not seen all nodes and leases yet")
		}
		if err := c.health.Load().Blind(); err != nil {
			return fmt.Errorf("%s: %w", nodecontroller.Name, err)
		}
	}

	if c.options.isEnabled(requestcontroller.Name) {
		if a := c.asked.Load(); a == nil || !a.Synced() {
			return errors.New(requestcontroller.Name + " has not seen all EvictionRequests, Evictions and pods yet")
		}
	}

	if c.options.isEnabled(movecontroller.Name) {
		if m := c.mover.Load(); m == nil || !m.Synced() {
			return errors.New(movecontroller.Name + " has not seen the whole cluster yet")
		}
	}
	if c.options.isEnabled(movecontroller.GuardName) {
		if g := c.guard.Load(); g == nil || !g.Synced() {
			return errors.New(movecontroller.GuardName + " has not seen the whole cluster yet")
		}
	}
	return nil
}
