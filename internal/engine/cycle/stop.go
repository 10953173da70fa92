// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file gives up a placement in any stage. Its outstanding work is cancelled, and its
// reservations are released once no work is outstanding. The reason may come from outside: a watch
// shows the pod deleted or bound, its node was deleted, or another pod preempts it.

// Reasons for giving up a binding. The outcome of a Bind may also carry the exported ones.
var (
	ErrGone           = &Fault{Message: "the pod was deleted"}
	ErrBoundElsewhere = &Fault{Message: "the pod was bound by another client"}
	errNodeGone       = &Fault{Message: "the node was removed before the pod was bound to it"}
	errPreempted      = &Fault{Message: "preempted by DefaultPreemption"}
)

// placementsTo lists the placements to a node, sorted by pod so that the order of the resulting
// actions is fixed.
func (ps *placements) placementsTo(node string) (list []*placement) {
	for _, uid := range slices.Sorted(maps.Keys(ps.byPod)) {
		if b := ps.byPod[uid]; b.Node == node {
			list = append(list, b)
		}
	}
	return list
}

// confirmBound ends a placement after a watch has shown the pod on its node. A watch may show the
// binding before the outcome of the Bind arrives. It may also show a binding made by another
// client.
func (ps *placements) confirmBound(b *placement) {
	ps.leave(b)
	switch b.stage {
	case preparing:
		ps.letGo(b, ErrBoundElsewhere)
	case binding: // the outstanding outcome shows which client bound the pod
		b.confirmed = true
		ps.cancelBind(b, ErrBoundElsewhere)
	}
}

// abandonPod ends and returns the placement of a deleted pod, or of a pod bound by another client.
// It returns nil if there is no placement. The pod stops counting immediately, even if work that
// cannot be stopped is still outstanding.
func (ps *placements) abandonPod(uid types.UID, why *Fault) *placement {
	b := ps.byPod[uid]
	if b != nil {
		ps.uncountPod(b)
		ps.letGo(b, why)
	}
	return b
}

// letGo ends a placement that is no longer in byPod.
func (ps *placements) letGo(b *placement, why *Fault) {
	b.dropped = true
	ps.stopBinding(b, why)
}

// stopBinding stops a binding if it is not too late. The pod returns to the queue immediately, or
// once the outstanding work completes. A bound placement is left unchanged.
func (ps *placements) stopBinding(b *placement, why *Fault) {
	switch b.stage {
	case preparing:
		ps.stopPreparation(b, why)
	case binding:
		ps.cancelBind(b, why)
	}
}

// stopPreparation ends a preparation: immediately if no work is outstanding, otherwise with the
// last outcome. It may be called again while outcomes are outstanding; the first reason is kept.
func (ps *placements) stopPreparation(b *placement, why *Fault) {
	if b.ending == nil {
		b.ending = why
		for _, ticket := range slices.Sorted(maps.Keys(b.prepare.running)) {
			if b.prepare.running[ticket] == nominateStep {
				// The write of the nomination need not be awaited, since later writes to the pod
				// reach the API after it.
				delete(b.prepare.running, ticket)
				continue
			}
			ps.addAction(Cancel{ticket, why.Message})
		}
	}
	ps.endWaits(b)
	ps.endPermitWait(b, "rejected")
	ps.finishStopped(b)
}

// endWaits ends the waits of a failed placement.
func (ps *placements) endWaits(b *placement) {
	for _, one := range ps.conditions {
		if one.placement == b {
			ps.reportWait(one, "error")
		}
	}
	ps.conditions = slices.DeleteFunc(ps.conditions, func(c *objectWait) bool { return c.placement == b })
	b.prepare.waiting = 0
}

// reportWait reports the result of a wait to the metrics.
func (ps *placements) reportWait(one *objectWait, how string) {
	if one.over != nil {
		one.over(ps, one.placement, how, ps.now.Sub(one.began))
	}
}

// Release ends a Hold, including after a timeout or cancellation.
type Release struct {
	Ticket Ticket
	How    string // "allowed", "rejected" or "timed out"
	Took   time.Duration
}

func (a Release) String() string {
	return fmt.Sprintf("release #%d: %s after %s", a.Ticket, a.How, a.Took.Round(time.Millisecond))
}

// endPermitWait ends the pod's wait at Permit, if any. how is a label of the metric: allowed,
// rejected or timed out.
func (ps *placements) endPermitWait(b *placement, how string) {
	p := b.permit
	if p == nil || p.over {
		return
	}
	p.over, p.pending = true, nil
	delete(ps.held, p.ticket)
	ps.events.held = len(ps.held)
	ps.observer().Permitted(how, ps.now.Sub(p.since))
	ps.addAction(Release{p.ticket, how, ps.now.Sub(p.since)})
}

// finishStopped finishes a stopped preparation once no work is outstanding.
func (ps *placements) finishStopped(b *placement) {
	if len(b.prepare.running) > 0 {
		return
	}
	if !b.prepare.began.IsZero() {
		ps.observer().Ran(b.Profile, plugins.PreBind, false, ps.now.Sub(b.prepare.began))
	}
	b.stage = ended
	defer b.tellPreemptor()
	if b.dropped {
		ps.dropPlacement(b)
		return
	}
	if b.permit != nil && b.permit.verdict != nil {
		ps.takeBack(b, b.permit.verdict)
		return
	}
	ps.takeBack(b, b.ending)
}

// cancelBind requests the cancellation of the binding. The outcome of the Bind, which always
// arrives, ends the placement.
func (ps *placements) cancelBind(b *placement, why *Fault) {
	if b.ending == nil {
		b.ending = why
		ps.addAction(Cancel{b.binding, why.Message})
	}
}

// takeBack ends a failed placement; the pod returns to the queue.
func (ps *placements) takeBack(b *placement, err error) {
	ps.releaseReserved(b)
	ps.uncountPod(b)
	b.endAttempt(false)
	ps.listener.requeuePlacement(b, err)
}

// dropPlacement ends a placement no longer needed by its pod.
func (ps *placements) dropPlacement(b *placement) {
	ps.releaseReserved(b)
	b.endAttempt(false)
}

// releaseReserved releases all reservations. Reservations made in the same step have blocked no
// other pod, and need no event.
func (ps *placements) releaseReserved(b *placement) {
	if b.stage == reserving {
		ps.giveBack(b)
		return
	}
	ps.tellGivenBack(b, func() { ps.giveBack(b) })
}

// tellGivenBack calls giveBack, and records events for the volumes and devices of the placement
// that giveBack frees, since other pods may wait for them. No watch shows the release of volumes
// and devices that were never written.
func (ps *placements) tellGivenBack(b *placement, giveBack func()) {
	var were []*resourcev1.ResourceClaim
	for i := range b.devices.Claims {
		name := nameOf(b.devices.Claims[i].Claim)
		if claim, ok := ps.cluster.ResourceClaims.Get(name.Namespace, name.Name); ok && claim.Status.Allocation != nil {
			were = append(were, claim)
		}
	}

	giveBack()
	for _, assumed := range b.volumes.Volumes {
		if volume, ok := ps.cluster.Volumes.Get("", assumed.Name); ok && volume.Spec.ClaimRef == nil {
			ps.events.objectChanged(queue.Volume, assumed, volume)
		}
	}

	for _, was := range were {
		switch is, ok := ps.cluster.ResourceClaims.Get(was.Namespace, was.Name); {
		case !ok:
			ps.events.objectChanged(queue.ResourceClaim, was, nil)
		case is.Status.Allocation == nil:
			ps.events.objectChanged(queue.ResourceClaim, was, is)
		}
	}
}

// giveBack undoes all reservations of a placement.
func (ps *placements) giveBack(b *placement) {
	if b.asked {
		b.asked = false
		for _, r := range slices.Backward(b.profile.reserve) {
			r.Unreserve(&b.Attempt)
		}
	}
	for _, undo := range slices.Backward(b.undo) {
		undo()
	}
	b.undo = nil
}

// uncountPod takes the pod off the node on which it is counted. It does nothing unless b is still
// the pod's placement.
func (ps *placements) uncountPod(b *placement) {
	if ps.byPod[b.Pod.UID] != b {
		return
	}
	ps.leave(b)
	if p := ps.cluster.Pod(b.Pod.UID); p != nil { // not necessarily b's own object: markLeaving replaces the pod with a marked copy
		n := p.Node
		ps.cluster.RemovePod(b.Pod.UID)
		ps.events.podRemoved(p, n, nil)
	}
}

func (ps *placements) leave(b *placement) {
	delete(ps.byPod, b.Pod.UID)
	ps.byPod = cluster.Shrunk(ps.byPod, &ps.most)
}
