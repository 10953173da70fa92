package live

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// task is an action that has an answer. The first to move it out of waiting proceeds: the worker
// that begins it, or the owner that withdraws it. Whatever happens, the core gets one Answered
// event per ticket.
type task struct {
	state  atomic.Int32
	cancel context.CancelCauseFunc             // nil: once begun it is finished
	do     func(context.Context) cycle.Outcome // what a worker does; of whoever moves the task out of waiting
}

// States of a task.
const (
	waiting int32 = iota
	begun
	withdrawn
)

// request carries out an action on a goroutine of its own, and returns the answer.
type request = func(context.Context) cycle.Event

// carryOut carries out an action of the core, or returns the request that does. It does not block,
// since it runs on the owner's goroutine between two decisions.
//
// There are three ways: bindings and writes go to workers in the order of the actions (queueTask),
// what plugins and volumes need before a binding gets a goroutine per pod, because it may take
// minutes (beginRequest), and what only changes the owner's own state is done here.
func (s *Scheduler) carryOut(_ context.Context, action cycle.Action) request {
	switch a := action.(type) {
	case cycle.Ready:
		if s.ready != nil {
			s.ready()
			s.ready = nil // a core that replaces this one is ready, too
		}
	case cycle.Bind:
		if log := klog.Background().V(2); log.Enabled() { // arguments are allocated even if nothing is logged
			log.Info("Decided", "pod", klog.KObj(a.Attempt.Pod), "node", a.Attempt.Node)
		}
		s.queueTask(s.binders, a.Ticket, func(ctx context.Context) cycle.Outcome { return s.binding.bindPod(ctx, a) })
	case cycle.Cancel:
		s.cancelTask(a)
	case cycle.Preflight:
		return s.beginRequest(a.Ticket, func(ctx context.Context) cycle.Outcome { return s.runPreflight(ctx, a) })
	case cycle.PreBind:
		return s.beginRequest(a.Ticket, func(ctx context.Context) cycle.Outcome {
			return s.plugins.timePlugin(a.Attempt, a.Plugin.Name(), func() cycle.Outcome {
				_, err := callGuarded(s.plugins, a.Plugin, func() (none struct{}, err error) {
					return none, a.Plugin.PreBind(ctx, a.Attempt)
				})
				return outcomeOf(err)
			})
		})
	case cycle.WriteVolumes:
		return s.beginRequest(a.Ticket, func(ctx context.Context) cycle.Outcome {
			return s.plugins.timePlugin(a.Attempt, "VolumeBinding", func() cycle.Outcome {
				return outcomeOf(s.writer.writeVolumes(ctx, &a.Volumes))
			})
		})
	case cycle.WriteClaims:
		// On the owner and not in the request; see joinClaims.
		turns := s.writer.turns.joinClaims(a.Uses)
		return s.beginRequest(a.Ticket, func(ctx context.Context) cycle.Outcome {
			defer s.writer.turns.leaveClaims(a.Uses)
			return s.plugins.timePlugin(a.Attempt, "DynamicResources", func() cycle.Outcome { return s.writer.writeClaims(ctx, a, turns) })
		})
	case cycle.Hold:
		s.permits.holdPod(s.loop.See, a)
	case cycle.Release:
		s.permits.releasePod(a.Ticket)
	case cycle.Ask:
		return func(context.Context) cycle.Event { return s.askAside(a) }
	case cycle.Panicked:
		err := fmt.Errorf("panic: %s\n%s", a.Value, a.Stack)
		klog.Background().Error(err, "A decision panicked; its pod backs off", "pod",
			klog.KRef(a.Pod.Namespace, a.Pod.Name), "mendedNodes", a.Mended)
		s.observer.Panicked()
	case cycle.Compared:
		s.shadow.Bound(a.Pod, a.Node, a.Said, a.Unclear)
	default:
		s.writeLater(action)
	}
	return nil
}

// writeLater carries out the actions that write to the API and are not urgent. It is on the list of
// carryOut's cases: an action that neither knows is a fault of the program.
func (s *Scheduler) writeLater(action cycle.Action) {
	switch a := action.(type) {
	case cycle.Remove:
		s.queueTask(s.helpers, a.Ticket, func(ctx context.Context) cycle.Outcome {
			err := s.writer.removeVictim(ctx, a)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Victim not removed", "victim", klog.KRef(a.Victim.Namespace, a.Victim.Name), "for", a.For)
			}
			return outcomeOf(err)
		})
	case cycle.GiveBackClaim:
		s.queueTask(s.helpers, a.Ticket, func(ctx context.Context) cycle.Outcome {
			err := s.writer.giveBackClaim(ctx, a)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Claim not given back", "claim", klog.KObj(a.Claim))
			}
			return outcomeOf(err)
		})
	case cycle.ReleaseClaim:
		release := func(ctx context.Context) cycle.Outcome {
			claim, err := s.writer.releaseClaim(ctx, a.Claim, a.Holder)
			o := outcomeOf(err)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Claim not given back", "claim", klog.KObj(a.Claim), "holder", a.Holder)
			} else if claim != nil {
				o.Claims = append(o.Claims, claim)
			}
			return o
		}

		if a.Ticket == 0 {
			s.helpers.addTask(func(ctx context.Context) { release(ctx) })
			return
		}
		s.queueTask(s.helpers, a.Ticket, release)
	case cycle.WriteStatus:
		one := newStatusWrite(a)
		s.podStatuses.addWrite(one.Pod, one, a.Reworded)
	case cycle.WriteGroup:
		s.groupStatuses.addWrite(a.Group, a, false)
	case cycle.Tell:
		s.events.Tell(eventlog.Event{Component: a.Profile, About: a.About, Type: a.Type, Reason: a.Reason, Message: a.Message})
	case cycle.Announce:
		s.announceBound(a.Attempt)
	case cycle.ReadPod:
		s.helpers.addTask(func(ctx context.Context) { s.readPod(ctx, a) })
	default:
		panic(fmt.Sprintf("no one carries out %T", action))
	}
}

// queueTask lets workers carry out an action. It can be withdrawn until a worker begins it; then it
// is finished, because a request that was sent cannot be called back.
func (s *Scheduler) queueTask(by *workers, ticket cycle.Ticket, do func(context.Context) cycle.Outcome) {
	t := &task{do: do}
	s.tasks[ticket] = t
	by.addTask(func(ctx context.Context) {
		if t.state.CompareAndSwap(waiting, begun) {
			s.loop.See(cycle.Answered{Ticket: ticket, Outcome: t.do(ctx)})
		}
	})
}

// beginRequest returns a request that carries out an action; its context ends when the action is
// cancelled or the scheduler is to stop. It counts as begun from the start, since its goroutine
// waits for nothing.
func (s *Scheduler) beginRequest(ticket cycle.Ticket, do func(context.Context) cycle.Outcome) request {
	ctx, cancel := context.WithCancelCause(s.life.running)
	t := &task{cancel: cancel}
	t.state.Store(begun)
	s.tasks[ticket] = t
	return func(context.Context) cycle.Event {
		defer cancel(nil)
		return cycle.Answered{Ticket: ticket, Outcome: do(ctx)}
	}
}

// cancelTask ends a task as soon as that is possible: one that waits is withdrawn, a request has
// its context cancelled with the reason, and what workers have begun is finished. The answer comes
// in each case.
func (s *Scheduler) cancelTask(a cycle.Cancel) {
	t := s.tasks[a.Ticket]
	switch {
	case t == nil: // it has been answered
	case t.cancel != nil:
		t.cancel(errors.New(a.Reason))
	case t.state.CompareAndSwap(waiting, withdrawn):
		t.do = nil // workers may come to it much later, and it has the pod
		s.loop.See(cycle.Answered{Ticket: a.Ticket, Outcome: cycle.Outcome{Withdrawn: true}})
	}
}

// askAside waits for an extender's answer for as long as a pod is to be decided with it. The event
// that says that the scheduler stops changes nothing: Activate without pods. The goroutine that
// asks may outlive the wait, but its request ends with the scheduler.
func (s *Scheduler) askAside(a cycle.Ask) cycle.Event {
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		a.Aside.Ask(s.life.running)
	}()
	select {
	case <-asked:
		return cycle.Answered{Ticket: a.Ticket}
	case <-s.life.running.Done():
		return cycle.Activate{}
	}
}

// outcomeOf is that of an action that ended with this error, or with nil. An error that calls
// itself unschedulable is a verdict on the pod; any other is a failure.
func outcomeOf(err error) cycle.Outcome {
	if err == nil {
		return cycle.Outcome{}
	}
	refused := (interface{ Unschedulable() bool })(nil)
	return cycle.Outcome{Fault: &cycle.Fault{Message: err.Error(), Verdict: errors.As(err, &refused) && refused.Unschedulable()}}
}

// runPreflight asks the plugins what they have to do before the binding, one after the other. The
// first failure ends it, and the pod is not bound.
func (s *Scheduler) runPreflight(ctx context.Context, a cycle.Preflight) (o cycle.Outcome) {
	for _, p := range a.By.PreBind {
		work, err := callGuarded(s.plugins, p, func() (cycle.PreBindWork, error) { return p.Needed(ctx, a.Attempt) })
		if err != nil {
			return outcomeOf(fmt.Errorf("running PreBindPreFlight %q: %w", p.Name(), err))
		}
		o.Work = append(o.Work, work)
	}
	return o
}

// readPod tries until the API server answers, and shows the core the pod that it has. That the pod
// does not exist is an answer, too, with nothing to show: the watch tells that.
func (s *Scheduler) readPod(ctx context.Context, a cycle.ReadPod) {
	s.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		found, err := s.client.CoreV1().Pods(a.Name.Namespace).Get(ctx, a.Name.Name, metav1.GetOptions{})
		if err == nil {
			s.loop.See(cycle.Read{Pod: found})
		}
		return isAnswered(err)
	})
}
