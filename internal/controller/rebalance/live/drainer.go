package live

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/loop"
)

// Drainer drains nodes of a cluster. It is for one drain or roll, and ends when its core does or
// the context.
type Drainer struct {
	*loop.Loop[execute.Event, execute.Action]
	client   kubernetes.Interface
	profiles []*plugins.Profile
	dry      bool
	surge    bool
	// scales is set by Run before the loop begins.
	scales   map[schema.GroupKind]bool
	noRoom   func(why string)
	events   *drainEvents
	requests *requests
	tell     func(execute.Action) bool // takes the actions that report something
}

// NewDrainer returns a Drainer. profiles are the scheduler's; told and done are called as the drain
// proceeds, and must not block.
//
// Both functions are called on the loop's goroutine.
func NewDrainer(client kubernetes.Interface, profiles []*plugins.Profile, options execute.DrainOptions,
	told func(execute.DrainTold), done func(execute.DrainDone)) *Drainer {
	options.Wall = wallTime
	events := newDrainEvents(client)
	return newDrainer(client, profiles, &options, events, execute.NewDrainer(options), func(action execute.Action) bool {
		switch a := action.(type) {
		case execute.DrainTold:
			events.writeEvents(&a)
			told(a)
		case execute.DrainDone:
			done(a)
		default:
			return false
		}
		return true
	})
}

// NewRoller returns a Drainer that rolls nodes. What it tells of pods goes to told, and what it
// tells of nodes to rolled. The caller's functions are called as those of NewDrainer.
func NewRoller(
	client kubernetes.Interface, profiles []*plugins.Profile, options execute.RollOptions,
	told func(execute.DrainTold), rolled func(execute.RollTold), done func(execute.RollDone),
) *Drainer {
	options.Wall = wallTime
	events := newDrainEvents(client)
	return newDrainer(client, profiles, &options.DrainOptions, events, execute.NewRoller(options), func(action execute.Action) bool {
		switch a := action.(type) {
		case execute.DrainTold:
			events.writeEvents(&a)
			told(a)
		case execute.RollTold:
			rolled(a)
		case execute.RollDone:
			done(a)
		default:
			return false
		}

		return true
	})
}

// drainCore decides about one drain, or about a roll. execute.Drainer and execute.Roller are.
type drainCore interface {
	Step(now time.Time, event execute.Event) []execute.Action
	Wake() (at time.Time, ok bool)
}

// newDrainer returns a Drainer of a core.
//
// tell takes an action if it reports something, and returns false for requests. Plans are made with
// the profiles and scales of this process, which the core does not know.
func newDrainer(client kubernetes.Interface, profiles []*plugins.Profile, options *execute.DrainOptions,
	events *drainEvents, core drainCore, tell func(execute.Action) bool) *Drainer {
	d := &Drainer{Loop: loop.New[execute.Event, execute.Action]("drain"), client: client, profiles: profiles,
		dry: options.DryRun, surge: options.Surge, events: events, tell: tell}
	d.noRoom = saidOnce(d.See)
	d.requests = newRequests(client, d.noRoom)
	d.requests.asker = newAsker(client, drainRequester, func(why string) { d.See(execute.Unanswered{Why: why}) })
	d.Step, d.Tick = core.Step, execute.Tick{}

	d.Wake = func(now time.Time) time.Time {
		if at, ok := core.Wake(); ok {
			return at
		}
		return now.Add(idle)
	}

	d.Do = func(_ context.Context, action execute.Action) func(context.Context) execute.Event {
		if tell(action) {
			return nil
		}
		planning := rebalance.Options{Profiles: profiles, Scales: d.scales}
		switch a := action.(type) {
		case execute.PlanDrain:
			return func(context.Context) execute.Event {
				return execute.DrainPlanned{Plan: rebalance.PlanDrain(a.State, a.Leaving, planning)}
			}
		case execute.PlanRoll:
			return func(context.Context) execute.Event {
				if a.Next {
					return execute.RollPlanned{Turn: rebalance.PlanTurn(a.State, a.Rolling, planning)}
				}
				return execute.RollPlanned{Plan: rebalance.PlanRoll(a.State, a.Rolling, planning)}
			}
		}
		return func(ctx context.Context) execute.Event { return d.requests.carryOut(ctx, action) }
	}

	return d
}

// Stop ends the drain: no further pod is evicted, and the nodes stay cordoned.
func (d *Drainer) Stop() { d.See(execute.Stop{}) }

// Run drains until the context ends.
//
// DaemonSets are read besides what a Mover reads: kubectl drain looks at whether the one that owns
// a pod exists. The context is to be ended by the caller once done was called.
func (d *Drainer) Run(ctx context.Context) error {
	daemonSets := kind{d.client.AppsV1().RESTClient(), "daemonsets", func() runtime.Object { return &appsv1.DaemonSetList{} }, false}
	kinds := append(kindsOf(d.client), daemonSets)
	var err error
	if d.surge {
		kinds = append(kinds, surgeKinds(d.client)...)
		if d.scales, err = scalesOf(d.client.Discovery()); err != nil {
			return err
		}
	}

	feeds, err := feedsOf(ctx, kinds, d, func() {})
	if err != nil {
		return err
	}

	if why := otherPlacer(ctx, d.client, d.profiles); why != "" && !d.dry {
		d.noRoom(why)
	}
	d.Loop.Run(ctx, append(feeds, d.events.log.Run)...)
	d.tellLeft()
	return nil
}

// tellLeft says that requests could not be withdrawn: their pods are still going to be evicted. It
// is the last line of a drain, since nothing but the user can take them back then.
func (d *Drainer) tellLeft() {
	if err := d.requests.left.Load(); err != nil {
		d.tell(execute.DrainTold{Result: execute.Direct, Message: fmt.Sprintf("pods that stay may still be evicted, because "+
			"EvictionRequests could not be withdrawn: %v: kubectl delete evictionrequests -A -l berth.dev/requester=%s",
			*err, drainRequester)})
	}
}
