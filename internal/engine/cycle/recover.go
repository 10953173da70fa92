// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
)

// recoverAttempt, deferred by decidePod, ends the attempt of a pod after a panic in its decision:
// no pod may stop the scheduling of other pods. The pod backs off. All potentially half-changed
// state is recomputed: the cluster's sums from the pods in the API, and the rankings from the sums.
//
// In kube-scheduler a panic in a plugin ends the process.
func (as *attempts) recoverAttempt(b *placement) {
	value := recover()
	if value == nil {
		return
	}
	if as.placements.byPod[b.Pod.UID] != b { // the panic came before or while the pod was counted
		as.cluster.RemovePod(b.Pod.UID)
	}
	as.reportPanic(b, value)
	fault := &Fault{Message: fmt.Sprintf("internal error while the pod was decided: %v", value)}
	if b.stage != reserving {
		return // the placement was complete; what panicked came after it
	}
	as.placements.takeBack(b, fault)
}

// reportPanic reports a panic and recomputes potentially half-changed state: the sums over the pods
// of nodes, and the rankings. Deciders are recreated because their caches may be half filled.
func (as *attempts) reportPanic(b *placement, value any) {
	stack := debug.Stack()
	if elsewhere, ok := value.(interface{ Stack() []byte }); ok {
		stack = elsewhere.Stack()
	}
	as.addAction(Panicked{Reference(b.Pod), fmt.Sprint(value), stack, as.cluster.Recount()})
	for _, name := range slices.Sorted(maps.Keys(as.profiles.byName)) { // in a fixed order: each draws a seed
		p := as.profiles.byName[name]
		p.Decider, p.failed = as.newDecider(p.Profile.Profile, as.rng.Uint64()), failure{}
	}
	as.events.inPostFilter = false
}
