// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/guard"
	"github.com/berth-k8s/berth/internal/kube/lead"
	"github.com/berth-k8s/berth/internal/kube/memoryrelease"
	"github.com/berth-k8s/berth/internal/kube/serve"
	"github.com/berth-k8s/berth/internal/scheduler/metrics"
	"github.com/berth-k8s/berth/internal/scheduler/options"
	"github.com/berth-k8s/berth/internal/scheduler/outoftree"
	"github.com/berth-k8s/berth/internal/scheduler/runner"
	"github.com/berth-k8s/berth/internal/scheduler/schedulershadow"
	"github.com/berth-k8s/berth/internal/usage"
)

// process is a scheduler with its clients, endpoints and leader election.
type process struct {
	*command
	source   options.Source
	settings options.Settings

	client   kubernetes.Interface
	asking   kubernetes.Interface // authenticates and authorizes requests to the endpoints
	rest     *rest.Config
	events   *eventlog.Log // events of this process about its Lease
	recorder *metrics.Recorder
	store    *outoftree.Store

	elector   atomic.Pointer[lead.Elector] // nil until the Lease is determined
	server    *serve.Server
	scheduler *runner.Scheduler
	shadow    *schedulershadow.Recorder // set with --shadow
	journal   *journal.Writer           // set with --journal
	inUse     atomic.Pointer[loaded]
	ending    atomic.Bool
	password  string // password of the plain-HTTP decision endpoints; see withPassword
}

func ownPlugin(name string) bool {
	_, own := plugins.Lookup(name)
	return own
}

// runScheduler runs the scheduler until the context ends or leadership is lost.
func (c *command) runScheduler(ctx context.Context) error {
	p := &process{command: c, source: c.flags.Source(), recorder: metrics.New(), store: outoftree.NewStore(), password: rand.Text()}
	data, err := p.source.Read()
	if err != nil {
		return err
	}
	connecting := p.connectAPI(data)
	if connecting != nil && len(c.factories) > 0 {
		return connecting // out-of-tree plugins may use the client during their creation
	}
	first, err := p.loadConfig(ctx, data)
	if err != nil {
		return err // reported rather than a connection error, which the file may have caused
	}

	if p.settings, err = p.flags.Settings(first.config, data); err != nil {
		if p.flags.ElectionGiven() {
			return usage.Of(err)
		}
		return fmt.Errorf("%s: %w", p.source.Name, err)
	}
	for _, note := range first.config.Notes {
		fmt.Fprintf(c.err, "%s: %s\n", p.source.Name, note)
	}
	if c.flags.WriteConfigTo != "" {
		return p.writeConfig(first)
	}
	if first.config.Legacy {
		fmt.Fprintf(c.err, "%s: is translated; the same flags and --write-config-to - print the "+
			"KubeSchedulerConfiguration that replaces it\n", p.source.Name)
	}
	if connecting != nil {
		return connecting
	}
	return p.startProcess(ctx, first)
}

// connectAPI creates the client used for scheduling.
func (p *process) connectAPI(data []byte) (err error) {
	settings := p.flags.Connection(data)
	if p.rest, err = settings.Rest("scheduler"); err != nil {
		return err
	}
	lead.Guard(p.rest, p.hasLostLeadership)
	p.client, err = kubernetes.NewForConfig(p.rest)
	return err
}

// hasLostLeadership reports whether this process has lost its leadership.
func (p *process) hasLostLeadership() bool {
	elector := p.elector.Load()
	return elector != nil && elector.Over()
}

// writeConfig writes the effective configuration, including defaults and flags.
func (p *process) writeConfig(l *loaded) error {
	text, err := options.YAML(p.settings.Full(l.config))
	if err != nil {
		return err
	}
	if p.flags.WriteConfigTo == "-" {
		_, err := p.out.Write(text)
		return err
	}
	return os.WriteFile(p.flags.WriteConfigTo, text, 0o600)
}

// startProcess creates and runs the clients, the election and the server.
func (p *process) startProcess(ctx context.Context, first *loaded) error {
	// Events use a separate client to avoid delaying other requests. For small requests HTTP/1.1
	// takes a third less CPU than HTTP/2, which adds framing and a goroutine per request.
	to, err := p.settings.Rest("scheduler-events")
	if err != nil {
		return err
	}
	to.NextProtos = []string{"http/1.1"}
	lead.Guard(to, p.hasLostLeadership)
	connect.KeepIdle(to, p.flags.Binders+eventlog.Writers)
	events, err := kubernetes.NewForConfig(to)
	if err != nil {
		return err
	}
	p.events = eventlog.New(events, first.profiles[0].SchedulerName)
	if to, err = p.settings.Rest("scheduler-guard"); err != nil {
		return err
	}
	if p.asking, err = guard.Client(to); err != nil {
		return err
	}
	election, err := p.settings.Election()
	if err != nil {
		return err
	}
	elector, err := lead.New(election, p.settings.Lead, leaseEvents{p})
	if err != nil {
		return err
	}
	elector.Annotate(config.InUseAnnotation, func() string { return p.inUse.Load().inUse.OnLease(elector.Identity()) })
	p.elector.Store(elector)
	if p.server, err = serve.Listen(p.flags.Serving); err != nil {
		return err
	}
	return p.runUntilDone(ctx, first, events)
}

// runUntilDone runs everything until the context ends. It first stops scheduling, waits for
// bindings in flight and releases the Lease; then it stops the endpoints and flushes the events.
func (p *process) runUntilDone(ctx context.Context, first *loaded, events kubernetes.Interface) error {
	p.inUse.Store(first)
	defer func() { p.inUse.Load().closePlugins() }()
	telling, stopTelling := context.WithCancel(context.WithoutCancel(ctx))
	var tellers sync.WaitGroup
	defer func() { stopTelling(); tellers.Wait() }()
	if p.settings.ContentionProfiling {
		goruntime.SetBlockProfileRate(1)
		defer goruntime.SetBlockProfileRate(0)
	}
	leads := make(chan struct{})
	var err error
	options := runner.Options{
		Profiles: first.profiles, Observer: p.recorder, Objects: p.recorder.Overheads(p.store), Lead: leads,
		ContentType: p.settings.ContentType, UserAgent: p.rest.UserAgent,
		Ready:        func() { fmt.Fprintln(p.out, "ready") },
		FirstBackoff: p.settings.FirstBackoff, LastBackoff: p.settings.LastBackoff, MaxWait: p.flags.MaxUnschedulable,
		Groups: p.flags.Groups, SearchLimit: p.flags.SearchLimit, Disabled: p.flags.Disabled(),
		ResizePreemption: p.flags.ResizePreemption(), NoScheduledEvents: !p.flags.ScheduledEvents,
	}
	if p.flags.Shadow {
		p.shadow = schedulershadow.New(time.Now())
		options.Shadow = p.shadow
	}
	if p.flags.Journal.Dir != "" {
		if err := p.startJournal(first, &options); err != nil {
			return err
		}
		defer p.endRecord()
	}
	p.scheduler, err = runner.New(p.client, events, options)
	if err != nil {
		return err
	}
	for _, url := range p.server.URLs() {
		fmt.Fprintf(p.err, "health and metrics on %s\n", url)
	}
	if err := p.writeAddresses(); err != nil {
		return err
	}
	p.recorder.Watch(p.scheduler.Sizes)
	p.recorder.WatchDevices(p.scheduler.Look)
	// Serve health before plugins wait for their informers: otherwise the kubelet would repeatedly
	// restart the scheduler while the API server is slow.
	tellers.Go(func() { p.server.Run(telling, p.newEndpoints(), p.asking) })
	tellers.Go(func() { p.events.Run(telling) })
	tellers.Go(func() { memoryrelease.Run(telling) })
	if err := first.usePlugins(ctx, p.scheduler); err != nil {
		return err
	}
	p.recorder.Configured()
	if p.source.Follow {
		following, stop := context.WithCancel(ctx)
		defer stop()
		tellers.Go(func() { p.newFollower(following).Run(following, first.data) })
	}
	defer p.ending.Store(true)
	context.AfterFunc(ctx, func() { p.ending.Store(true) })
	if p.flags.Shadow {
		return p.runShadow(ctx)
	}
	return p.runLeading(ctx, leads)
}

// runLeading runs the scheduler, which follows the cluster immediately and decides once this
// replica leads.
func (p *process) runLeading(ctx context.Context, leads chan struct{}) error {
	scheduling, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	failed, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- p.scheduler.Run(scheduling, p.flags.Binders)
		cancel() // the scheduler has ended by itself: leave standby
	}()

	var led atomic.Bool
	err := p.elector.Load().Run(failed, func(leading context.Context) error {
		led.Store(true)
		close(leads)
		defer context.AfterFunc(leading, stop)()
		return <-ended
	})
	if led.Load() || errors.Is(err, lead.ErrLost) {
		return err
	}
	stop()
	return errors.Join(err, <-ended)
}

// newEndpoints returns the handlers of health, metrics, configuration and decisions.
func (p *process) newEndpoints() serve.Handlers {
	e := &serve.Endpoints{
		Component: "berth-scheduler",
		Live:      []serve.Check{{Name: "leaderElection", Failed: p.elector.Load().Alive}},
		Ready: []serve.Check{
			{Name: "leaderElection", Failed: p.elector.Load().Alive},
			{Name: "shutdown", Failed: func(*http.Request) error { return p.notEnding() }},
			{Name: "sched-handler-sync", Failed: func(*http.Request) error { return p.checkSynced() }},
		},
		Metrics: p.recorder,
		Config: func() map[string]any {
			return map[string]any{"componentconfig": p.settings.Full(p.inUse.Load().config)}
		},
		Flags: p.flags.Set,
	}

	e.Profiling = p.settings.PlainProfiling
	plain := e.Handler()
	switch {
	case !isLoopback(p.server.PlainAddress()):
	case p.flags.AddressFile != "":
		plain = p.withPassword(plain)
	default:
		plain = p.withDecisions(plain)
	}

	e.Profiling = p.settings.Profiling
	return serve.Handlers{Secure: p.withDecisions(e.Handler()), Plain: plain}
}

func (p *process) notEnding() error {
	if p.ending.Load() {
		return errors.New("process is shutting down")
	}
	return nil
}

func (p *process) checkSynced() error {
	if !p.scheduler.Synced() {
		return errors.New("the cluster's nodes, pods and other objects are not all known yet")
	}
	return nil
}
