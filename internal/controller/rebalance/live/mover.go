package live

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/loop"
)

// Name is the component's, as in --controllers. Requesters of EvictionRequests have it, too.
const Name = "rebalance"

// idle is how long the loop sleeps while nothing is due. A core that waits for events alone needs
// no alarm; the loop has to have some time to sleep until.
const idle = time.Hour

// Options configure a Mover.
type Options struct {
	Execute execute.Options
	// Policy reads what to move for; names of priority classes are looked up in the cluster.
	Policy func(policy.Priorities) (*rebalance.Policy, error)
	// Profiles are the scheduler's, and Placing is how well its choice can be predicted. They must
	// be those of the scheduler that runs: nothing here can check that.
	Profiles []*plugins.Profile
	Placing  rebalance.Placing
	// Told and Done, if set, are called as a run proceeds. They must not block.
	Told func(execute.Told)
	Done func(execute.Done)
}

// Mover carries out moves.
//
// The core decides and knows no API; requests talk to the API and decide nothing. Between them is
// the loop, on whose goroutine the core is stepped: feeds and answers are put into its queue, and
// each request runs on another goroutine.
type Mover struct {
	*loop.Loop[execute.Event, execute.Action]
	options  Options
	client   kubernetes.Interface
	requests *requests
	events   *eventlog.Log
	policy   *rebalance.Policy
	// policy and scales are set by Run before the loop begins, and only read from then on.
	scales map[schema.GroupKind]bool
	// synced is written by a feed and read by health checks.
	synced atomic.Bool
}

// New returns a Mover. Events about pods go to events. Nothing is requested until Run.
// options.Execute.Wall is set here.
func New(client kubernetes.Interface, events *eventlog.Log, options Options) *Mover {
	options.Execute.Wall = wallTime
	core := execute.New(options.Execute)
	m := &Mover{Loop: loop.New[execute.Event, execute.Action](Name), options: options, client: client, events: events}
	m.requests = newRequests(client, saidOnce(m.See))
	m.requests.asker = newAsker(client, Name, func(why string) { m.See(execute.Unanswered{Why: why}) })
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

// Synced reports whether everything has been seen. Until then no plan is made.
func (m *Mover) Synced() bool { return m.synced.Load() }

// Stop prevents further moves. A victim that has been evicted is followed to the end. It may be
// called from any goroutine, and returns at once.
func (m *Mover) Stop() { m.See(execute.Stop{}) }

// Run makes moves until the context ends, and returns once no request is in flight.
//
// Errors are those of the beginning: a policy that names no priority class of the cluster, or
// objects that may not be read. Later ones are answers to the core, which carries on or ends its
// run.
func (m *Mover) Run(ctx context.Context) error {
	// Once is enough: the policy's thresholds are fixed while it runs.
	classes, err := m.client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}

	m.policy, err = m.options.Policy(func(name string) (int32, bool) {
		for i := range classes.Items {
			if classes.Items[i].Name == name {
				return classes.Items[i].Value, true
			}
		}
		return 0, false
	})

	if err != nil {
		return err
	}
	for _, note := range m.policy.Notes {
		klog.FromContext(ctx).Info("Policy", "note", note)
		if m.options.Told != nil {
			m.options.Told(execute.Told{Message: "note: " + note})
		}
	}

	kinds := kindsOf(m.client)
	if m.options.Execute.Surge {
		kinds = append(kinds, surgeKinds(m.client)...)
		if m.scales, err = scalesOf(m.client.Discovery()); err != nil {
			return err
		}
	}
	feeds, err := feedsOf(ctx, kinds, m, func() { m.synced.Store(true) })
	if err != nil {
		return err
	}

	// It is said, and no reason to stop: every arrival is checked in any case.
	if why := otherPlacer(ctx, m.client, m.options.Profiles); why != "" {
		m.requests.noRoom(why)
	}
	m.Loop.Run(ctx, feeds...)
	return nil
}

// saidOnce returns a function that tells a core once that no room is kept. Each request that fails
// for it would say the same.
func saidOnce(see func(execute.Event)) func(why string) {
	var once sync.Once
	return func(why string) { once.Do(func() { see(execute.NoRoom{Why: why}) }) }
}

// runAction takes an action of the core. What reports something is done at once, on the loop's
// goroutine; what is a request is returned, to be run on another one.
func (m *Mover) runAction(ctx context.Context, action execute.Action) func(context.Context) execute.Event {
	switch a := action.(type) {
	case execute.Told:
		countMove(a)
		m.reportProgress(ctx, a)
		return nil
	case execute.Done:
		countRun(a)
		klog.FromContext(ctx).Info("Rebalanced", "moves", a.Moves, "misses", a.Misses, "stopped", a.Stopped)
		if m.options.Done != nil {
			m.options.Done(a)
		}
		return nil
	case execute.MakePlan:
		// A plan takes seconds in a large cluster. The state is a copy of the list, and its objects
		// are never changed, so events may come meanwhile.
		return func(context.Context) execute.Event {
			options := a.Options
			options.Profiles, options.Placing, options.Scales = m.options.Profiles, m.options.Placing, m.scales
			return execute.Planned{Plan: rebalance.Make(a.State, m.policy, options)}
		}
	}

	return func(ctx context.Context) execute.Event { return m.requests.carryOut(ctx, action) }
}

// reportProgress passes progress on, and writes events about pods. Events are about the victim; its
// successor has none.
func (m *Mover) reportProgress(ctx context.Context, a execute.Told) {
	if m.options.Told != nil {
		m.options.Told(a)
	}
	switch a.Result {
	case execute.Roomless:
		klog.FromContext(ctx).Info("Moves go on, but no room is kept for successors", "reason", a.Message)
	case execute.Direct:
		klog.FromContext(ctx).Info(a.Message)
	}

	if a.Move == nil {
		return
	}
	klog.FromContext(ctx).V(2).Info("Move", "pod", klog.KRef(a.Move.Namespace, a.Move.Name), "result", a.Result,
		"node", a.Node, "message", a.Message)
	about := v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: a.Move.Namespace, Name: a.Move.Name, UID: a.Move.UID}

	switch a.Result {
	case execute.Evicted:
		m.events.Add(about, v1.EventTypeNormal, "Rebalanced", "Evicted from "+a.Move.From+" for "+a.Move.Cause+
			"; its successor was proved to land on "+a.Move.To)
	case execute.Replaced:
		m.events.Add(about, v1.EventTypeNormal, "Rebalanced", "Leaves "+a.Move.From+" for "+a.Move.Cause+"; its successor is ready")
	case execute.Resumed, execute.Arrived, execute.Ended, execute.Raised, execute.Awaited:
	default:
		m.events.Add(about, v1.EventTypeWarning, "RebalanceFailed", a.Message)
	}
}
