// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// drain bounds the time in which a stopping scheduler writes events, after finishWithin. Both
// together fit into the 30 s that the kubelet grants by default.
const drain = 2 * time.Second

// recordBinding emits the event of a bound pod, with the same reason and message as upstream. A pod
// is bound only once, so the event is never repeated (Once).
func (s *Scheduler) recordBinding(a *cycle.Attempt) {
	regarding := cycle.Reference(a.Pod)
	s.events.Record(eventlog.Event{
		Component: a.Profile, Regarding: regarding, Type: v1.EventTypeNormal, Reason: "Scheduled",
		Message: "Successfully assigned " + regarding.Namespace + "/" + regarding.Name + " to " + a.Node, Once: true,
	})
}
