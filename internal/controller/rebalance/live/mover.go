package live

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

// idle is how long the loop sleeps while nothing is due. A core that waits for events alone needs
// no alarm; the loop has to have some time to sleep until.
const idle = time.Hour

// Mover carries out moves, a drain or a roll.
//
// The core decides and knows no API; requests talk to the API and decide nothing. Between them is
// the loop, on whose goroutine the core is stepped: feeds and answers are put into its queue, and
// each request runs on another goroutine.
type Mover struct {
	*loop.Loop[execute.Event, execute.Action]
	client   kubernetes.Interface
	requests *requests
	options  rebalance.Options // of all plans; Scales is set by Run before the loop begins
	policy   *rebalance.Policy // of moves, set by prepare

	// tell takes an action if it reports something. It is called on the loop's goroutine.
	tell func(ctx context.Context, action execute.Action) bool
	// prepare, if set, is called when Run begins, and finish when it ends; beside runs meanwhile.
	prepare func(ctx context.Context) error
	finish  func(ctx context.Context)
	beside  []func(ctx context.Context)
	kinds   []kind // that the core is shown
	surge   bool   // successors may come first
	dry     bool   // nothing is changed
	// synced is written by a feed and read by health checks.
	synced atomic.Bool
}

// core decides what is requested. execute.Core, Drainer and Roller are.
type core interface {
	Step(now time.Time, event execute.Event) []execute.Action
	Wake() (at time.Time, ok bool)
}

// newMover returns a Mover of a core. The name is the requester's of EvictionRequests, too.
func newMover(client kubernetes.Interface, name string, core core, options rebalance.Options, surge bool) *Mover {
	m := &Mover{Loop: loop.New[execute.Event, execute.Action](name), client: client, options: options, kinds: kindsOf(client), surge: surge}
	m.requests = newRequests(client, saidOnce(m.See))
	m.requests.asker = newAsker(client, name, func(why string) { m.See(execute.Unanswered{Why: why}) })
	if surge {
		m.kinds = append(m.kinds, surgeKinds(client)...)
	}

	m.Step, m.Tick, m.Do = core.Step, execute.Tick{}, m.runAction
	m.Wake = func(now time.Time) time.Time {
		if at, ok := core.Wake(); ok {
			return at
		}
		return now.Add(idle)
	}
	return m
}

// wallTime is the wall-clock time at any moment of a loop's clock, which is never set. Ages, and
// what is written for the next process, are by the clock that the API's times are by. Round drops
// the monotonic reading, which means nothing to other processes.
func wallTime(time.Time) time.Time { return time.Now().Round(0).UTC() }

// saidOnce returns a function that tells a core once that no room is kept. Each request that fails
// for it would say the same.
func saidOnce(see func(execute.Event)) func(why string) {
	var once sync.Once
	return func(why string) { once.Do(func() { see(execute.NoRoom{Why: why}) }) }
}

// Synced reports whether everything has been seen. Until then no plan is made.
func (m *Mover) Synced() bool { return m.synced.Load() }

// Stop has no further pod leave. A move whose pod was evicted is followed to the end, and the nodes
// of a drain stay cordoned. It may be called from any goroutine, and returns at once.
func (m *Mover) Stop() { m.See(execute.Stop{}) }

// Run carries out what the core decides until the context ends, and returns once no request is in
// flight. The caller ends the context when it was told that the core is done.
//
// Errors are those of the beginning, such as objects that may not be read. Later ones are answers
// to the core, which carries on or ends.
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

	// It is said, and no reason to stop: every arrival is checked in any case.
	if why := otherPlacer(ctx, m.client, m.options.Profiles); why != "" && !m.dry {
		m.requests.noRoom(why)
	}
	m.Loop.Run(ctx, append(feeds, m.beside...)...)
	if m.finish != nil {
		m.finish(ctx)
	}
	return nil
}

// runAction takes an action of the core. What reports something is done at once; what is a request
// is returned, to be run on another goroutine.
func (m *Mover) runAction(ctx context.Context, action execute.Action) func(context.Context) execute.Event {
	if m.tell(ctx, action) {
		return nil
	}
	return func(ctx context.Context) execute.Event {
		if planned := m.makePlan(action); planned != nil {
			return planned
		}
		return m.requests.carryOut(ctx, action)
	}
}

// makePlan answers a request for a plan; nil: it is another one. A plan takes seconds in a large
// cluster: the state is a copy of the list, and its objects are never changed, so events may come
// meanwhile.
func (m *Mover) makePlan(action execute.Action) execute.Event {
	switch a := action.(type) {
	case execute.MakePlan:
		options := a.Options
		options.Profiles, options.Placing, options.Scales = m.options.Profiles, m.options.Placing, m.options.Scales
		return execute.Planned{Plan: rebalance.Make(a.State, m.policy, options)}
	case execute.PlanDrain:
		return execute.DrainPlanned{Plan: rebalance.PlanDrain(a.State, a.Leaving, m.options)}
	case execute.PlanRoll:
		if a.Next {
			return execute.RollPlanned{Turn: rebalance.PlanTurn(a.State, a.Rolling, m.options)}
		}
		return execute.RollPlanned{Plan: rebalance.PlanRoll(a.State, a.Rolling, m.options)}
	}
	return nil
}
