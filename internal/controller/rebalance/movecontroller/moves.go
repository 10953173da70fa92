// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// Name is the component's name in --controllers and in the requester of EvictionRequests.
const Name = "rebalance"

// Options configure a Mover that makes moves, and its callbacks.
type Options struct {
	Execute execute.Options
	// Policy reads the goals of moves; names of priority classes are looked up in the cluster.
	Policy func(policy.Priorities) (*rebalance.Policy, error)
	// Profiles are the scheduler's, and Placing states how well its choice can be predicted. They
	// must match the running scheduler, which cannot be checked here.
	Profiles []*plugins.Profile
	Placing  rebalance.Placing
	// OnProgress and Done, if set, are called as a run proceeds. They must not block.
	OnProgress func(execute.MoveProgress)
	Done       func(execute.Done)
	// Planning, if set, is called before each plan. No move is in progress until it returns.
	Planning func(ctx context.Context)
}

// New returns a Mover that makes moves by a policy. Events about pods go to events. It sends no
// requests until Run, which fails if the policy names a nonexistent priority class. New sets
// options.Execute.Wall.
func New(client kubernetes.Interface, events *eventlog.Log, options Options) *Mover {
	options.Execute.Wall = wallTime
	planning := rebalance.Options{Profiles: options.Profiles, Placing: options.Placing}
	m := newMover(client, Name, execute.New(options.Execute), planning, options.Execute.Surge)
	m.planning = options.Planning
	m.prepare = func(ctx context.Context) error { return m.readPolicy(ctx, &options) }

	m.report = func(ctx context.Context, action execute.Action) bool {
		switch a := action.(type) {
		case execute.MoveProgress:
			countMove(a)
			if options.OnProgress != nil {
				options.OnProgress(a)
			}
			reportProgress(ctx, events, a)
		case execute.Done:
			countRun(a)
			klog.FromContext(ctx).Info("Rebalanced", "moves", a.Moves, "misses", a.Misses, "stopped", a.Stopped)
			if options.Done != nil {
				options.Done(a)
			}
		default:
			return false
		}
		return true
	}
	return m
}

// readPolicy reads the policy and reports its parts without effect. Reading it once is enough: its
// thresholds are fixed while the process runs.
func (m *Mover) readPolicy(ctx context.Context, options *Options) error {
	classes, err := m.client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	m.policy, err = options.Policy(func(name string) (int32, bool) {
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
		if options.OnProgress != nil {
			options.OnProgress(execute.MoveProgress{Message: "note: " + note})
		}
	}
	return nil
}

// reportProgress logs progress, and writes events about pods. Events refer to the victim, never to
// its successor.
func reportProgress(ctx context.Context, events *eventlog.Log, a execute.MoveProgress) {
	switch a.Result {
	case execute.Unreserved:
		klog.FromContext(ctx).Info("Moves go on, but no room is kept for successors", "reason", a.Message)
	case execute.Direct:
		klog.FromContext(ctx).Info(a.Message)
	}

	if a.Move == nil {
		return
	}
	klog.FromContext(ctx).V(2).Info("Move", "pod", klog.KRef(a.Move.Namespace, a.Move.Name), "result", a.Result,
		"node", a.Node, "message", a.Message)
	regarding := v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: a.Move.Namespace, Name: a.Move.Name, UID: a.Move.UID}

	switch a.Result {
	case execute.Evicted:
		events.Add(regarding, v1.EventTypeNormal, "Rebalanced", "Evicted from "+a.Move.From+" for "+a.Move.Cause+
			"; its successor was proved to land on "+a.Move.To)
	case execute.Replaced:
		events.Add(regarding, v1.EventTypeNormal, "Rebalanced", "Leaves "+a.Move.From+" for "+a.Move.Cause+"; its successor is ready")
	case execute.Resumed, execute.Arrived, execute.Ended, execute.Raised, execute.Awaited:
	default:
		events.Add(regarding, v1.EventTypeWarning, "RebalanceFailed", a.Message)
	}
}
