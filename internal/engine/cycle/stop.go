// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file gives up a placement in any stage: it cancels the outstanding work, and releases the
// reservations once no work is outstanding.

// Reasons for giving up a binding.
var (
	errGone           = &Fault{Message: "the pod was deleted"}
	errBoundElsewhere = &Fault{Message: "the pod was bound by another client"}
	errNodeGone       = &Fault{Message: "the node was removed before the pod was bound to it"}
	errPreempted      = &Fault{Message: "preempted by DefaultPreemption"}
)

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

// finishStopped finishes a stopped preparation once no work is outstanding.
func (ps *placements) finishStopped(b *placement) {
	if len(b.prepare.running) > 0 {
		return
	}
	if !b.prepare.began.IsZero() {
		ps.observer().Ran(b.Profile, plugins.PreBind, false, ps.now.Sub(b.prepare.began))
	}
	b.stage = ended
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
	ps.tellGivenBack(b, ps.giveBack)
}

// tellGivenBack calls giveBack, and records events for the volumes and devices of the placement
// that giveBack frees, since other pods may wait for them. No watch shows the release of volumes
// and devices that were never written.
func (ps *placements) tellGivenBack(b *placement, giveBack func(b *placement)) {
	var were []*resourcev1.ResourceClaim
	for i := range b.devices.Claims {
		name := nameOf(b.devices.Claims[i].Claim)
		if claim, ok := ps.cluster.ResourceClaims.Get(name.Namespace, name.Name); ok && claim.Status.Allocation != nil {
			were = append(were, claim)
		}
	}

	giveBack(b)
	for _, assumed := range b.volumes.Volumes {
		if volume, ok := ps.cluster.Volumes.Get("", assumed.Name); ok && volume.Spec.ClaimRef == nil {
			ps.events.addEvent(queue.Event{Resource: queue.Volume, Action: queue.Update, Label: string(queue.Volume) +
				"Update", Old: assumed, New: volume})
		}
	}

	for _, was := range were {
		e := queue.Event{Resource: queue.ResourceClaim, Action: queue.Delete, Label: string(queue.ResourceClaim) + "Delete", Old: was}
		if is, ok := ps.cluster.ResourceClaims.Get(was.Namespace, was.Name); ok {
			if is.Status.Allocation != nil {
				continue
			}
			e.Action, e.Label, e.New = queue.Update, string(queue.ResourceClaim)+"Update", is
		}
		ps.events.addEvent(e)
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
