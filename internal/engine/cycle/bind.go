// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// This file binds a prepared pod: bindPod sends the Bind, whose outcome and whose watch event may
// arrive in either order. Both together end the placement.

// Bind binds a pod to its node. The outcome must be certain: after a request with an unknown
// result, the executor checks the API until it is certain whether the pod was bound. A Bind
// cancelled before it began is reported as withdrawn.
type Bind struct {
	Ticket  Ticket
	Attempt *Attempt
	By      *Stages
}

func (a Bind) String() string {
	return fmt.Sprintf("bind %s to %s #%d", a.Attempt, a.Attempt.Node, a.Ticket)
}

// RecordBinding records the Kubernetes Event for a bound pod. It follows the outcome of the Bind,
// even if a watch has already shown the binding.
type RecordBinding struct{ Attempt *Attempt }

func (a RecordBinding) String() string {
	return fmt.Sprintf("announce %s on %s", a.Attempt, a.Attempt.Node)
}

// bindPod sends the Bind action. Afterwards, the pod can be stopped only by a Cancel that arrives
// before the Bind begins.
func (ps *placements) bindPod(b *placement) {
	b.stage = binding
	b.binding = ps.issueHandled(b, func(o Outcome) { ps.bindEnded(b, o) })
	ps.addAction(Bind{b.binding, &b.Attempt, &b.profile.Stages})
}

// bindEnded ends the placement according to the outcome of its Bind and to the watch events
// received in the meantime. A watch takes precedence over an outcome, since it shows the state
// stored by the API server.
func (ps *placements) bindEnded(b *placement, o Outcome) {
	if o.Fault == nil && !o.Withdrawn {
		ps.addAction(RecordBinding{&b.Attempt})
	}
	switch {
	case b.dropped, b.confirmed && o.Withdrawn: // a watch has already shown the pod as deleted, or as bound
		b.stage = bound
		ps.dropPlacement(b)
	case b.confirmed:
		ps.finishBound(b)
	case ps.byPod[b.Pod.UID] != b:
	case o.Withdrawn, b.ending == errPreempted && o.Fault != nil: // memberLost must see that the pod was preempted
		ps.takeBack(b, b.ending)
	case o.Fault != nil:
		ps.takeBack(b, o.Fault)
	default:
		ps.finishBound(b)
	}
	b.tellPreemptor()
}

// readOverdue fetches bound pods whose binding no watch has shown since the previous flush. A Bind
// can succeed without effect, for example if a proxy answered it. Then the Read shows the pod
// without a node, and intake returns it to the queue.
func (ps *placements) readOverdue() {
	var overdue []cluster.Name
	for _, b := range ps.byPod {
		if b.stage == bound && b.overdue {
			overdue = append(overdue, nameOf(b.Pod))
		}
		b.overdue = b.stage == bound
	}
	slices.SortFunc(overdue, compareNames)
	for _, name := range overdue {
		ps.addAction(ReadPod{name})
	}
}

// finishBound ends the attempt of a bound pod. The pod stays in byPod until a watch shows it on its
// node.
func (ps *placements) finishBound(b *placement) {
	b.stage = bound
	for _, l := range b.profile.learners {
		l.Learn(ps.cluster, b.Waiting)
	}
	ps.observer().Attempted(b.Profile, Scheduled, ps.clock().Sub(b.watch))
	ps.observer().Bound(b.item.Attempts, ps.now.Sub(b.item.Admitted), b.item.Overdue)
	b.endAttempt(true)
	ps.listener.noteBound(b)
}
