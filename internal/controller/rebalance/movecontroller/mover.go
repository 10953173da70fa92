// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/loop"
)

// Mover carries out moves, a drain or a roll.
//
// The core makes decisions without access to the API; requests access the API without making
// decisions. The loop connects them. It steps the core on its goroutine: feeds and responses are
// queued there, and each request runs on another goroutine.
type Mover struct {
	*loop.Loop[execute.Event, execute.Action]
	client   kubernetes.Interface
	requests *requests
	options  rebalance.Options // options of all plans; Scales is set by Run before the loop begins
	policy   *rebalance.Policy // policy of moves, set by prepare

	// report handles actions that are reports, and returns false for all others. It is called on
	// the loop's goroutine.
	report func(ctx context.Context, action execute.Action) bool
	// prepare, if set, is called at the beginning of Run. finish, if set, is called at its end.
	// concurrent holds functions that run concurrently with the loop.
	prepare    func(ctx context.Context) error
	planning   func(ctx context.Context) // if set, called before each plan of moves
	finish     func(ctx context.Context)
	concurrent []func(ctx context.Context)
	kinds      []kind // kinds shown to the core
	surge      bool   // successors may be created first
	dry        bool   // nothing is changed
	// synced is written by a feed and read by health checks.
	synced atomic.Bool
}

// core decides the requests. It is implemented by execute.Core, Drainer and Roller.
type core interface {
	Step(now time.Time, event execute.Event) []execute.Action
	Wake() (at time.Time, ok bool)
}

// newMover returns a Mover of a core. name also identifies the requester of EvictionRequests.
func newMover(client kubernetes.Interface, name string, core core, options rebalance.Options, surge bool) *Mover {
	m := &Mover{Loop: loop.New[execute.Event, execute.Action](name), client: client, options: options, kinds: kindsOf(client), surge: surge}
	m.requests = newRequests(client, reportOnce(m.See))
	m.requests.requester = newRequester(client, name, func(why string) { m.See(execute.Unanswered{Why: why}) })
	if surge {
		m.kinds = append(m.kinds, surgeKinds(client)...)
	}

	m.Step, m.Tick, m.Do, m.Wake = core.Step, execute.Tick{}, m.runAction, loop.Idle(core.Wake)
	return m
}

// wallTime returns the current wall-clock time. It ignores its argument, the time of the loop's
// clock, which is never adjusted: ages, and times written for the next process, must use the clock
// of the API's timestamps. Round drops the monotonic reading, which is meaningless to other
// processes.
func wallTime(time.Time) time.Time { return time.Now().Round(0).UTC() }

// reportOnce returns a function that reports only the first failure to reserve room to a core.
// Later failures would repeat the same report.
func reportOnce(see func(execute.Event)) func(why string) {
	var once sync.Once
	return func(why string) { once.Do(func() { see(execute.NoReservation{Why: why}) }) }
}

// Synced reports whether all kinds have been listed. Planning waits until then.
func (m *Mover) Synced() bool { return m.synced.Load() }

// Stop prevents further evictions. A move with an evicted pod is followed to the end, and the nodes
// of a drain stay cordoned. Stop may be called from any goroutine, and returns immediately.
func (m *Mover) Stop() { m.See(execute.Stop{}) }

// Run carries out the core's decisions until the context ends, and returns once all requests have
// completed. The caller cancels the context after the core reports its end.
//
// Run returns only initial errors, such as missing read permissions. Later errors are responses to
// the core, which carries on or ends.
func (m *Mover) Run(ctx context.Context) (err error) {
	if m.prepare != nil {
		if err := m.prepare(ctx); err != nil {
			return err
		}
	}
	if m.surge {
		if m.options.Scales, err = scalesOf(m.client.Discovery()); err != nil {
			return err
		}
	}
	feeds, err := feedsOf(ctx, m.kinds, m, func() { m.synced.Store(true) })
	if err != nil {
		return err
	}

	// Another scheduler is reported, but does not end Run: every arrival is checked in any case.
	if why := otherPlacer(ctx, m.client, m.options.Profiles); why != "" && !m.dry {
		m.requests.noReservation(why)
	}
	m.Loop.Run(ctx, append(feeds, m.concurrent...)...)
	if m.finish != nil {
		m.finish(ctx)
	}
	return nil
}

// runAction handles an action of the core. It handles reports immediately, and returns requests to
// be run on another goroutine.
func (m *Mover) runAction(ctx context.Context, action execute.Action) func(context.Context) execute.Event {
	if m.report(ctx, action) {
		return nil
	}
	return func(ctx context.Context) execute.Event {
		if planned := m.makePlan(ctx, action); planned != nil {
			return planned
		}
		return m.requests.carryOut(ctx, action)
	}
}

// makePlan responds to a request for a plan, and returns nil for any other. A plan takes seconds in
// a large cluster. It works on a fork of the cluster state, so that events can be handled
// meanwhile.
func (m *Mover) makePlan(ctx context.Context, action execute.Action) execute.Event {
	switch a := action.(type) {
	case execute.MakePlan:
		if m.planning != nil {
			m.planning(ctx)
		}
		options := a.Options
		options.Profiles, options.Placing, options.Scales = m.options.Profiles, m.options.Placing, m.options.Scales
		return execute.Planned{Plan: rebalance.Make(a.State, m.policy, options)}
	case execute.PlanDrain:
		return execute.DrainPlanned{Plan: rebalance.PlanDrain(a.State, a.Leaving, m.options)}

	case execute.PlanRoll:
		if a.Next {
			if a.Rolling.Removes {
				var err error
				if a.Rolling.Pools, err = m.requests.nodePools(ctx); err != nil {
					return execute.RollPlanned{Turn: &rebalance.Turn{Held: err.Error()}}
				}
			}
			return execute.RollPlanned{Turn: rebalance.PlanTurn(a.State, a.Rolling, m.options)}
		}
		return execute.RollPlanned{Plan: rebalance.PlanRoll(a.State, a.Rolling, m.options)}
	}
	return nil
}
