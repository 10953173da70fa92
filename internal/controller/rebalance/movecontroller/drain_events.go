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

// drainEvents records, as events on pods, why a drain waits for them. They are for the pods'
// owners, for whom the output of the drain is not visible.
type drainEvents struct {
	log  *eventlog.Log
	said map[types.UID]string // by pod, the last event
}

// A drain ends soon after its last event, so the log gets a second to send it.
func newDrainEvents(client kubernetes.Interface) *drainEvents {
	log := eventlog.New(client, "berth-drain")
	log.Drain = time.Second
	return &drainEvents{log: log, said: map[types.UID]string{}}
}

// writeEvents writes the events resulting from a drain's progress report.
func (e *drainEvents) writeEvents(a *execute.DrainTold) {
	for _, h := range a.Held {
		e.addEvent(h.Pod, v1.EventTypeNormal, "DrainWaiting", h.Why)
	}
	switch {
	case a.Pod == nil:
	case a.Result == execute.Awaited:
		e.addEvent(a.Pod, v1.EventTypeNormal, "DrainWaiting", a.Message)
	case a.Result == execute.Restored:
		e.addEvent(a.Pod, v1.EventTypeWarning, "SurgeGivenUp", a.Message)
	}
}

// addEvent writes an event unless it repeats the pod's last one. A budget is tried every few
// seconds, and its response rarely changes.
func (e *drainEvents) addEvent(p *rebalance.Departure, kind, reason, message string) {
	event := reason + ": " + message
	if p.Name == "" || e.said[p.UID] == event {
		return
	}
	e.said[p.UID] = event
	e.log.Add(v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, kind, reason, message)
}
