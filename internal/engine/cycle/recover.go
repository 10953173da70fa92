// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
)

// recoverAttempt, deferred by decidePod, ends the attempt of a pod after a panic in its decision: a
// panic caused by one pod must not stop the scheduling of other pods. The pod backs off. All state
// that may be half changed is recomputed: the cluster's sums are recomputed from the pods in the
// API, and the rankings from these sums.
//
// In kube-scheduler a panic in a plugin ends the process.
func (s *attempts) recoverAttempt(a *podAttempt) {
	value := recover()
	if value == nil {
		return
	}
	if s.placements.byPod[a.Pod.UID] != &a.placement { // the panic occurred before the pod was registered in byPod
		s.cluster.RemovePod(a.Pod.UID)
	}
	s.reportPanic(a, value)
	fault := &Fault{Message: fmt.Sprintf("internal error while the pod was decided: %v", value)}
	if a.placement.stage != reserving {
		return // the placement was complete before the panic
	}
	s.placements.takeBack(&a.placement, fault)
}

// reportPanic reports a panic and recomputes all state that may be half changed: the sums over each
// node's pods, and the rankings. Deciders are recreated because their caches may be half filled.
func (s *attempts) reportPanic(a *podAttempt, value any) {
	stack := debug.Stack()
	if elsewhere, ok := value.(interface{ Stack() []byte }); ok {
		stack = elsewhere.Stack()
	}
	s.addAction(Panicked{Reference(a.Pod), fmt.Sprint(value), stack, s.cluster.Recount()})
	for _, name := range slices.Sorted(maps.Keys(s.profiles.byName)) { // in a fixed order, since each decider draws a seed
		p := s.profiles.byName[name]
		p.Decider, p.failed = s.newDecider(p.Profile.Profile, s.rng.Uint64()), failure{}
	}
	s.events.inPostFilter = false
}
