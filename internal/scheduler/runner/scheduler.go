// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/reconstruct"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/loop"
)

// Scheduler runs the scheduling cycle against an API server: watches pass the state of the cluster
// to the core, and workers or separate goroutines carry out the core's actions (carryOut). Unless
// stated otherwise, fields belong to the owner, which is the goroutine of the loop.
//
// For example, a watch puts a Seen event for a new pod into the loop's inbox. stepCore passes it to
// the core, which queues the pod. In a Tick, the core decides the pod and returns a Bind action,
// which carryOut queues for the binders. A binder sends the binding and puts an Answered event into
// the inbox. The core then counts the pod as bound, and returns the action that records the event.
type Scheduler struct {
	core    *cycle.Core   // replaced by a renewal
	made    cycle.Options // options of the core, for its replacement
	loop    *loop.Loop[cycle.Event, cycle.Action]
	client  kubernetes.Interface // for all requests except for events and bindings
	watches watches
	ready   func()          // nil if Options.Ready is unset or has been called
	lead    <-chan struct{} // Options.Lead
	shadow  Shadow          // nil: this scheduler makes the decisions
	journal Journal         // nil: nothing is recorded
	renewal renewal

	// tasks holds the actions that have no outcome yet. The owner adds a task before its Answered
	// event can arrive, and removes it when the event arrives.
	tasks map[cycle.Ticket]*task

	noScheduledEvents bool // see Options

	wallClock func() time.Time // time.Now, except in tests
	ahead     time.Duration    // difference between the wall clock and the core's clock, as last reported to the core

	life             lifetime
	binders, helpers *workers // binders only send bindings; helpers do all other work
	binding          binder
	plugins          *pluginCalls
	writer           writer

	// The fields below are safe for all goroutines.
	observer      cycle.Observer
	permits       permits
	podStatuses   *statuses[*statusWrite]
	groupStatuses *statuses[cycle.WriteGroup]
	events        *eventlog.Log
	sizes         [15]atomic.Int64 // as of the last step; see publishSizes
	synced        atomic.Bool      // stays true once set
	ended         chan struct{}    // closed when Run has returned
}

// Options configures a scheduler.
type Options struct {
	Profiles []cycle.Profile
	// Ready, if set, is called once, when the cluster has been listed and scheduling begins.
	Ready func()
	// Observer, if set, is notified of the scheduler's operations.
	Observer cycle.Observer
	// Lead, if set, is closed when this scheduler becomes the leader. Before that, it only watches
	// the cluster and queues pods, without decisions or writes.
	Lead <-chan struct{}
	// Objects, if set, gets the API objects of nodes, pods and pod groups.
	Objects cycle.Objects
	// Shadow, if set, gets the nodes chosen by other schedulers for the pods of the profiles, with
	// the evaluation of all nodes before each binding. It requires a Lead that is never closed.
	Shadow Shadow
	// ContentType is the content type of bindings and events; protobuf if it is empty.
	ContentType string
	// UserAgent is the user agent of bindings. If it is empty, they have the user agent of the
	// client for events.
	UserAgent string
	// FirstBackoff, LastBackoff and MaxWait configure the queue; 0 means its default.
	FirstBackoff, LastBackoff, MaxWait time.Duration
	// Seed seeds the core's random numbers; 0 means a random seed.
	Seed uint64
	// Groups holds the feature gates of pod groups, and SearchLimit bounds an attempt at a group;
	// see [cycle.Options].
	Groups      groups.Gates
	SearchLimit int
	// Disabled holds the features of the cycle that are disabled by feature gates.
	Disabled cycle.Disabled
	// ResizePreemption: see [cycle.Options].
	ResizePreemption bool
	// NoScheduledEvents omits the events Scheduled.
	NoScheduledEvents bool
	// Journal, if set, gets every event and the resulting actions. The owner calls it.
	Journal Journal
}

// Journal records the core's events and actions.
type Journal interface {
	Add(at time.Time, e cycle.Event, actions []cycle.Action)
	// Strips reports whether the core should get objects in the stripped form recorded by the
	// journal. Safe for all goroutines.
	Strips() bool
	// Due reports whether the journal should continue in another file. Prepare begins that file for
	// a new core with the seed, and returns a reader of events that transfer the current state to
	// the new core. These events, and all later events of the new core, must be passed to AddNext.
	// Turn switches to the new file, and Discard drops it.
	Due() bool
	Prepare(ctx context.Context, at time.Time, seed uint64) *journal.State
	AddNext(at time.Time, e cycle.Event, actions []cycle.Action)
	Turn()
	Discard()
}

// Shadow gets the pods bound by other schedulers. The owner calls it.
type Shadow interface {
	Bound(pod *v1.Pod, node string, evaluation *decide.Evaluation, unclear bool)
}

// helperCount is the number of workers for less urgent work, such as statuses and deletions of
// victims.
const helperCount = 32

// New returns a scheduler for the cluster of client. Events have a separate client with a separate
// rate limit, so that they do not delay other requests. Bindings use the connections of
// eventClient, which is configured for many small requests, but the rate limit of client.
func New(client, eventClient kubernetes.Interface, o Options) (*Scheduler, error) {
	bindings, err := newPoster(eventClient, client, o.ContentType, o.UserAgent)
	if err != nil {
		return nil, err
	}
	events, err := newPoster(eventClient, eventClient, o.ContentType, "")
	if err != nil {
		return nil, err
	}
	s := &Scheduler{
		client: client, observer: o.Observer, ready: o.Ready, lead: o.Lead, shadow: o.Shadow, journal: o.Journal,
		tasks: map[cycle.Ticket]*task{}, wallClock: time.Now, binders: newWorkers(), helpers: newWorkers(), ended: make(chan struct{}),
		life: lifetime{running: context.Background(), finishing: context.Background()}, noScheduledEvents: o.NoScheduledEvents,
	}
	s.made = cycle.Options{
		Profiles: o.Profiles, Seed: cmp.Or(o.Seed, rand.Uint64()), FirstBackoff: o.FirstBackoff,
		LastBackoff: o.LastBackoff, MaxWait: o.MaxWait,
		Observer: o.Observer, Stopwatch: time.Now, Objects: o.Objects, Groups: o.Groups,
		SearchLimit: o.SearchLimit, Disabled: o.Disabled, PrepareAside: true, ResizePreemption: o.ResizePreemption,
	}
	if o.Shadow != nil {
		s.made.Shadow = reconstruct.New
	}
	if s.core, err = cycle.New(s.made); err != nil {
		return nil, err
	}
	s.observer = cmp.Or[cycle.Observer](s.observer, cycle.NoObserver{})

	s.loop = loop.New[cycle.Event, cycle.Action]("scheduler")
	s.loop.Step, s.loop.Wake, s.loop.Tick, s.loop.Do = s.stepOrRenew, s.wakeOrRenew, cycle.Tick{}, s.carryOut
	s.events = eventlog.New(eventClient, "") // each event carries its profile's name
	s.events.Busy, s.events.Drain, s.events.Create = s.binders.hasWaiting, drain, events.postEvent
	s.permits.pods, s.permits.byTicket = map[types.UID]*WaitingPod{}, map[cycle.Ticket]*WaitingPod{}
	s.addParts(client, bindings.postBinding)
	return s, nil
}

// addParts creates the components that send requests for the scheduler. They get functions of the
// scheduler and not the scheduler itself, so that their dependencies are explicit.
func (s *Scheduler) addParts(client kubernetes.Interface, post func(context.Context, *v1.Binding) error) {
	s.plugins = &pluginCalls{observer: s.observer, life: &s.life}
	s.binding = binder{
		client: client, observer: s.observer, see: s.seeEvent, post: post, workers: s.binders, plugins: s.plugins, life: &s.life,
	}
	s.writer = writer{
		client: client, observer: s.observer, see: s.seeEvent, strips: s.stripsObjects,
		turns: claimTurns{turns: map[uint64]*claimTurn{}}, life: &s.life,
	}

	s.podStatuses = newStatuses(s.helpers, s.writeFirst, func(older, newer *statusWrite) *statusWrite { return newer.mergeAfter(older) })
	s.podStatuses.dropped = func(one *statusWrite) { s.answerTickets(one, cycle.Outcome{Withdrawn: true}) }
	s.groupStatuses = newStatuses(s.helpers, s.writer.writeGroup, func(_, newer cycle.WriteGroup) cycle.WriteGroup { return newer })
	s.watches = watches{
		client: client, see: s.seeEvent, show: s.loop.Show, life: &s.life, strips: s.stripsObjects, lead: s.lead, shadows: s.shadow != nil,
		groups: s.made.Groups.Generic, composites: s.made.Groups.Composite, taintRules: !s.made.Disabled.DeviceTaintRules,
		gentle:      slices.ContainsFunc(s.made.Profiles, func(p cycle.Profile) bool { return p.GentlePreemption }),
		podStatuses: s.podStatuses, groupStatuses: s.groupStatuses,
	}
}

// seeEvent puts an event into the inbox. Safe for all goroutines.
func (s *Scheduler) seeEvent(e cycle.Event) { s.loop.See(e) }

// Run schedules until the context ends. It then finishes the bindings that have begun, and drops
// the others. Work that takes longer than finishWithin is canceled, and plugins that do not return
// then are abandoned, so the process must exit. If the owner itself is in such a plugin, for
// example at Filter, Reserve or Permit, Run returns errStuck.
func (s *Scheduler) Run(ctx context.Context, binders int) error {
	defer close(s.ended)
	finishing, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(finishWithin, giveUp) })()
	s.life = lifetime{running: ctx, finishing: finishing}
	if err := s.watches.addFeeds(ctx); err != nil {
		return err
	}
	var telling sync.WaitGroup
	tellCtx, silence := context.WithCancel(context.WithoutCancel(ctx))
	defer silence()
	telling.Go(func() { s.events.Run(tellCtx) })
	s.loop.See(cycle.Follows{Kinds: s.watches.kinds})
	if s.lead == nil {
		s.loop.See(cycle.Led{})
	}

	returned := make(chan struct{})
	go func() {
		defer close(returned)
		s.loop.Run(ctx, append(s.watches.feeds,
			func(ctx context.Context) { s.binders.runWorkers(ctx, finishing, binders) },
			func(ctx context.Context) { s.helpers.runWorkers(ctx, finishing, helperCount) },
		)...)
	}()
	err := s.awaitLoop(returned)
	if err == nil {
		s.finishActions()
	}
	silence() // remaining events are written last, for drain at most
	telling.Wait()
	return err
}

// settleWithin bounds the time until the loop returns after the context finishing has ended.
const settleWithin = time.Second

// errStuck means that the owner's goroutine is in a plugin that does not return.
var errStuck = errors.New("an out-of-tree plugin did not return after the scheduler was to stop; it is not waited for")

// awaitLoop waits for the loop to return. It returns errStuck if the owner is in a plugin that does
// not return.
func (s *Scheduler) awaitLoop(returned <-chan struct{}) error {
	select {
	case <-returned:
		return nil
	case <-s.life.finishing.Done():
	}
	select {
	case <-returned:
		return nil
	case <-time.After(settleWithin):
		return errStuck
	}
}

// finishActions gives the core the outcomes that arrived after the end of the loop, and records the
// resulting Kubernetes events. It carries out no other actions.
func (s *Scheduler) finishActions() {
	if s.shadow != nil { // the core emits the remaining comparisons
		for _, action := range s.giveEvent(s.loop.Now().Add(reconstruct.MaxBindingDelay), cycle.Tick{}) {
			if a, ok := action.(cycle.Compared); ok {
				s.shadow.Bound(a.Pod, a.Node, a.Evaluation, a.Unclear)
			}
		}
		return
	}

	for _, event := range s.loop.Left() {
		if _, ok := event.(cycle.Answered); !ok {
			continue
		}
		for _, action := range s.stepCore(s.loop.Now(), event) {
			switch action.(type) {
			case cycle.RecordBinding, cycle.RecordEvent:
				s.writeLater(action)
			}
		}
	}
}

// stepCore gives the core an event. If the wall clock was set, the core gets WallSet instead of
// this Tick: times in API objects, such as the start of a pod, are wall-clock times, but the core's
// clock is not affected when the wall clock is set (package loop).
func (s *Scheduler) stepCore(now time.Time, e cycle.Event) []cycle.Action {
	switch e := e.(type) {
	case cycle.Answered:
		delete(s.tasks, e.Ticket)
	case cycle.Tick:
		if ahead := s.wallClock().Round(0).Sub(now); (ahead - s.ahead).Abs() >= wallMoved {
			s.ahead = ahead
			return s.giveEvent(now, cycle.WallSet{Ahead: ahead}) // the Tick follows, because it is still due
		}
	}
	return s.giveEvent(now, e)
}

// giveEvent gives the core an event, and records it with the resulting actions.
func (s *Scheduler) giveEvent(now time.Time, e cycle.Event) []cycle.Action {
	actions := s.core.Step(now, e)
	s.recordStep(now, e, actions)
	return actions
}

// wallMoved is the minimum change of the difference between the wall clock and the core's clock
// that is reported to the core. A slow drift accumulates until it reaches wallMoved.
const wallMoved = 100 * time.Millisecond
