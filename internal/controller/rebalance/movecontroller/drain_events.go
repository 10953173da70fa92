// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

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
