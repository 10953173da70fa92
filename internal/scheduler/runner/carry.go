// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

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

// task is an action with an outcome. It leaves the state waiting when a worker begins it or the
// owner withdraws it, whichever is first. In both cases, the core gets exactly one Answered event
// for the ticket.
type task struct {
	state  atomic.Int32
	cancel context.CancelCauseFunc             // nil if the task cannot be canceled once begun
	run    func(context.Context) cycle.Outcome // called by the worker; belongs to the goroutine that changes the state from waiting
}

// These are the states of a task.
const (
	waiting int32 = iota
	begun
	withdrawn
)

// request carries out an action and returns the event with its outcome. The loop calls it on a
// separate goroutine.
type request = func(context.Context) cycle.Event

// carryOut carries out an action of the core, or returns a request that does so. The owner calls it
// between two decisions, so it must not block.
//
// Bindings and writes are queued for workers in the order of the actions (queueTask). The work of
// plugins and volumes before a binding runs on a goroutine per pod (beginRequest), because it may
// take minutes. Other actions are carried out immediately.
func (s *Scheduler) carryOut(_ context.Context, action cycle.Action) request {
	switch a := action.(type) {
	case cycle.Ready:
		if s.ready != nil {
			s.ready()
			s.ready = nil // ready is called only once, even if the core is replaced
		}
	case cycle.Bind:
		if log := klog.Background().V(2); log.Enabled() { // avoids the allocation of arguments if logging is disabled
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
		// joinClaims must be called here, on the owner's goroutine, and not in the request.
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
		return func(context.Context) cycle.Event { return s.runQuery(a) }
	case cycle.Panicked:
		err := fmt.Errorf("panic: %s\n%s", a.Value, a.Stack)
		klog.Background().Error(err, "A decision panicked; its pod backs off", "pod",
			klog.KRef(a.Pod.Namespace, a.Pod.Name), "mendedNodes", a.Mended)
		s.observer.Panics()
	case cycle.Compared:
		s.shadow.Bound(a.Pod, a.Node, a.Evaluation, a.Unclear)
	default:
		s.writeLater(action)
	}
	return nil
}

// writeLater carries out the actions that write to the API and are not urgent. It panics for an
// action that neither it nor carryOut handles.
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
	case cycle.DeallocateClaim:
		s.queueTask(s.helpers, a.Ticket, func(ctx context.Context) cycle.Outcome {
			err := s.writer.deallocateClaim(ctx, a)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Claim not deallocated", "claim", klog.KObj(a.Claim))
			}
			return outcomeOf(err)
		})
	case cycle.ReleaseClaim:
		release := func(ctx context.Context) cycle.Outcome {
			claim, err := s.writer.releaseClaim(ctx, a.Claim, a.Holder)
			o := outcomeOf(err)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Claim not deallocated", "claim", klog.KObj(a.Claim), "holder", a.Holder)
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
	case cycle.RecordEvent:
		s.events.Record(eventlog.Event{Component: a.Profile, Regarding: a.Regarding, Type: a.Type, Reason: a.Reason, Message: a.Message, Newest: true})
	case cycle.RecordBinding:
		if !s.noScheduledEvents {
			s.recordBinding(a.Attempt)
		}
	case cycle.ReadPod:
		s.helpers.addTask(func(ctx context.Context) { s.readPod(ctx, a) })
	default:
		panic(fmt.Sprintf("no handler for %T", action))
	}
}

// queueTask queues an action for the workers. The action can be withdrawn until a worker begins it;
// then it is finished, because a request that was sent cannot be recalled.
func (s *Scheduler) queueTask(by *workers, ticket cycle.Ticket, do func(context.Context) cycle.Outcome) {
	t := &task{run: do}
	s.tasks[ticket] = t
	by.addTask(func(ctx context.Context) {
		if t.state.CompareAndSwap(waiting, begun) {
			s.loop.See(cycle.Answered{Ticket: ticket, Outcome: t.run(ctx)})
		}
	})
}

// beginRequest returns a request that carries out an action. The context of do ends when the action
// is cancelled or the scheduler stops. The task counts as begun immediately, because it needs no
// worker.
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

// cancelTask ends a task as soon as possible: a waiting task is withdrawn, the context of a request
// is cancelled with the reason, and tasks begun by workers are finished. In each case, the core
// gets an Answered event.
func (s *Scheduler) cancelTask(a cycle.Cancel) {
	klog.Background().V(2).Info("Action cancelled", "ticket", a.Ticket, "reason", a.Reason)
	switch t := s.tasks[a.Ticket]; {
	case t == nil: // the task has already ended
	case t.cancel != nil:
		t.cancel(errors.New(a.Reason))
	case t.state.CompareAndSwap(waiting, withdrawn):
		t.run = nil // releases the memory of the pod, because the task may stay in the queue for long
		s.loop.See(cycle.Answered{Ticket: a.Ticket, Outcome: cycle.Outcome{Withdrawn: true}})
	}
}

// runQuery runs a query of an extender and waits for its end. If the scheduler stops first,
// runQuery returns an Activate without pods, which has no effect. The query's goroutine may then
// still be running, but the context of its request has ended.
func (s *Scheduler) runQuery(a cycle.Ask) cycle.Event {
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		a.Query.Run(s.life.running)
	}()
	select {
	case <-asked:
		return cycle.Answered{Ticket: a.Ticket}
	case <-s.life.running.Done():
		return cycle.Activate{}
	}
}

// outcomeOf returns the outcome of an action that ended with err, which may be nil. If err has a
// method Unschedulable that returns true, the pod counts as unschedulable; any other error is a
// failure.
func outcomeOf(err error) cycle.Outcome {
	if err == nil {
		return cycle.Outcome{}
	}
	refused := (interface{ Unschedulable() bool })(nil)
	return cycle.Outcome{Fault: &cycle.Fault{Message: err.Error(), Verdict: errors.As(err, &refused) && refused.Unschedulable()}}
}

// runPreflight calls PreBindPreFlight of the plugins in order, to determine their work before the
// binding. After the first failure it returns, and the pod is not bound.
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

// readPod reads a pod, retrying until there is a final response, and passes the pod to the core. If
// the pod does not exist, no event is passed on, because the watch will deliver the deletion.
func (s *Scheduler) readPod(ctx context.Context, a cycle.ReadPod) {
	s.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		found, err := s.client.CoreV1().Pods(a.Name.Namespace).Get(ctx, a.Name.Name, metav1.GetOptions{})
		if err == nil {
			s.loop.See(cycle.Read{Pod: found})
		}
		return isAnswered(err)
	})
}
