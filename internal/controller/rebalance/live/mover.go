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

// Name is the component's, as in --controllers.
const Name = "rebalance"

// idle is how long the loop sleeps while nothing is due.
const idle = time.Hour

// Options configure a Mover.
type Options struct {
	Execute execute.Options
	// Policy reads what to move for; names of priority classes are looked up in the cluster.
	Policy func(policy.Priorities) (*rebalance.Policy, error)
	// Profiles are the scheduler's, and Placing is how well its choice can be predicted.
	Profiles []*plugins.Profile
	Placing  rebalance.Placing
	// Told and Done, if set, are called as a run proceeds. They must not block.
	Told func(execute.Told)
	Done func(execute.Done)
}

// Mover carries out moves.
type Mover struct {
	*loop.Loop[execute.Event, execute.Action]
	options  Options
	client   kubernetes.Interface
	requests *requests
	events   *eventlog.Log
	policy   *rebalance.Policy
	scales   map[schema.GroupKind]bool
	synced   atomic.Bool
}

// New returns a Mover. Events about pods go to events.
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
// what is written for the next process, are by the clock that the API's times are by.
func wallTime(time.Time) time.Time { return time.Now().Round(0).UTC() }

// Synced reports whether everything has been seen.
func (m *Mover) Synced() bool { return m.synced.Load() }

// Stop prevents further moves. A victim that has been evicted is followed to the end.
func (m *Mover) Stop() { m.See(execute.Stop{}) }

// Run makes moves until the context ends, and returns once no request is in flight.
func (m *Mover) Run(ctx context.Context) error {
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

	if why := otherPlacer(ctx, m.client, m.options.Profiles); why != "" {
		m.requests.noRoom(why)
	}
	m.Loop.Run(ctx, feeds...)
	return nil
}

// saidOnce returns a function that tells a core once that no room is kept.
func saidOnce(see func(execute.Event)) func(why string) {
	var once sync.Once
	return func(why string) { once.Do(func() { see(execute.NoRoom{Why: why}) }) }
}

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
		return func(context.Context) execute.Event {
			options := a.Options
			options.Profiles, options.Placing, options.Scales = m.options.Profiles, m.options.Placing, m.scales
			return execute.Planned{Plan: rebalance.Make(a.State, m.policy, options)}
		}
	}

	return func(ctx context.Context) execute.Event { return m.requests.carryOut(ctx, action) }
}

// reportProgress passes progress on, and writes events about pods.
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
