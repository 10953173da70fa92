// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// NewDrainer returns a Mover that drains nodes. profiles are the scheduler's; told and done are
// called as the drain proceeds, and must not block.
func NewDrainer(client kubernetes.Interface, profiles []*plugins.Profile, options execute.DrainOptions,
	told func(execute.DrainProgress), done func(execute.DrainDone)) *Mover {
	options.Wall = wallTime
	return newDrainer(client, profiles, &options, execute.NewDrainer(options), told, func(action execute.Action) bool {
		a, ok := action.(execute.DrainDone)
		if ok {
			done(a)
		}
		return ok
	})
}

// NewRoller returns a Mover that rolls nodes. Reports about pods go to told, and reports about
// nodes to rolled. The three functions must not block.
func NewRoller(
	client kubernetes.Interface, profiles []*plugins.Profile, options execute.RollOptions,
	told func(execute.DrainProgress), rolled func(execute.RollProgress), done func(execute.RollDone),
) *Mover {
	options.Wall = wallTime
	return newDrainer(client, profiles, &options.DrainOptions, execute.NewRoller(options), told, func(action execute.Action) bool {
		switch a := action.(type) {
		case execute.RollProgress:
			rolled(a)
		case execute.RollDone:
			done(a)
		default:
			return false
		}
		return true
	})
}

// newDrainer returns a Mover of one drain, or of a roll. tell handles reports other than the
// progress of pods.
//
// In addition to the kinds needed by moves, it reads DaemonSets: kubectl drain checks that a pod's
// DaemonSet exists.
func newDrainer(client kubernetes.Interface, profiles []*plugins.Profile, options *execute.DrainOptions, core core,
	told func(execute.DrainProgress), tell func(execute.Action) bool) *Mover {
	m := newMover(client, drainRequester, core, rebalance.Options{Profiles: profiles}, options.Surge)
	m.kinds = append(m.kinds, kind{client.AppsV1().RESTClient(), "daemonsets",
		func() runtime.Object { return &appsv1.DaemonSetList{} }, false})
	events := newDrainEvents(client)
	m.dry, m.concurrent = options.DryRun, append(m.concurrent, events.log.Run)
	m.report = func(_ context.Context, action execute.Action) bool {
		a, ok := action.(execute.DrainProgress)
		if ok {
			events.recordEvents(&a)
			told(a)
		}
		return ok || tell(action)
	}

	// Report requests that could not be withdrawn: their pods will still be evicted, and only the
	// user can withdraw them.
	m.finish = func(ctx context.Context) {
		if err := m.requests.left.Load(); err != nil {
			m.report(ctx, execute.DrainProgress{Result: execute.Direct, Message: fmt.Sprintf("pods that stay may still be evicted, because "+
				"EvictionRequests could not be withdrawn: %v: kubectl delete evictionrequests -A -l berth.dev/requester=%s",
				*err, drainRequester)})
		}
	}
	return m
}

// drainEvents records on pods, as events, why a drain waits for them. Owners of pods see these
// events, but not the output of the drain.
type drainEvents struct {
	log  *eventlog.Log
	last map[types.UID]string // the last event, by pod
}

// newDrainEvents returns a drainEvents without events. At the end of the drain, the log has a
// second to send the last event.
func newDrainEvents(client kubernetes.Interface) *drainEvents {
	log := eventlog.New(client, "berth-drain")
	log.Drain = time.Second
	return &drainEvents{log: log, last: map[types.UID]string{}}
}

// recordEvents writes the events resulting from a drain's progress report.
func (e *drainEvents) recordEvents(a *execute.DrainProgress) {
	for _, h := range a.Held {
		e.recordEvent(h.Pod, v1.EventTypeNormal, "DrainWaiting", h.Why)
	}
	switch {
	case a.Pod == nil:
	case a.Result == execute.Awaited:
		e.recordEvent(a.Pod, v1.EventTypeNormal, "DrainWaiting", a.Message)
	case a.Result == execute.Restored:
		e.recordEvent(a.Pod, v1.EventTypeWarning, "SurgeGivenUp", a.Message)
	}
}

// recordEvent writes an event unless it repeats the pod's last one. An eviction refused by a budget
// is retried every few seconds, usually with the same response.
func (e *drainEvents) recordEvent(p *rebalance.Departure, kind, reason, message string) {
	event := reason + ": " + message
	if p.Name == "" || e.last[p.UID] == event {
		return
	}
	e.last[p.UID] = event
	e.log.Add(v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, kind, reason, message)
}
