// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file holds the work of Berth's own plugins for a placement after the choice of a node:
// volumes and device claims are reserved in the cluster model, written before the pod is bound,
// awaited, and released if the placement fails. Claims shared by several pods are in claims.go.

// volumesBound is the wait for the PV controller or a provisioner to bind all claims of the pod. If
// the node is deleted, the pod returns to the queue.
var volumesBound = waitFor{
	late:   "binding volumes: timed out waiting for the condition",
	within: func(b *placement) time.Duration { return b.volumes.Timeout },
	met: func(c *cluster.Cluster, b *placement) (bool, error) {
		n := c.Node(b.Node)
		if n == nil {
			return false, errNodeGone
		}
		return b.volumes.Bound(c, n)
	},
}

// devicesReady is the wait for the drivers to set all binding conditions of the allocated devices.
// Most devices have no binding conditions, and need no wait.
var devicesReady = waitFor{
	late:   "device binding timeout",
	needed: func(b *placement) bool { return slices.ContainsFunc(b.devices.Claims, awaitsDevices) },
	event: func(b *placement) RecordEvent {
		return RecordEvent{
			Profile: b.Profile, Regarding: Reference(b.Pod), Type: v1.EventTypeNormal, Reason: "BindingConditionsPending",
			Message: "waiting for binding conditions for device on node " + b.Node,
		}
	},
	within: func(b *placement) time.Duration { return b.devices.Timeout },
	met: func(c *cluster.Cluster, b *placement) (bool, error) {
		for i := range b.devices.Claims {
			name := b.devices.Claims[i].Claim
			claim, ok := c.ResourceClaims.Get(name.Namespace, name.Name)
			if !ok {
				return false, fmt.Errorf("resourceclaim %q not found", name.Name)
			}
			if ready, err := plugins.Ready(claim); !ready || err != nil {
				return false, err
			}
		}
		return true, nil
	},
	over: func(ps *placements, b *placement, how string, took time.Duration) {
		for i := range b.devices.Claims {
			if allocation := b.devices.Claims[i].Claim.Status.Allocation; allocation != nil {
				for j := range allocation.Devices.Results {
					device := &allocation.Devices.Results[j]
					ps.observer().AwaitedDevice(b.Profile, device.Driver, how, len(device.BindingConditions) > 0, took)
				}
			}
		}
	},
}

// awaitCondition makes a placement wait, if needed, until a plugin's written objects are ready.
// Since the objects may be ready already, events.objects is set to check them in the next tick.
func (ps *placements) awaitCondition(b *placement, plugin string, w waitFor) {
	if w.needed != nil && !w.needed(b) {
		return
	}
	if w.event != nil {
		ps.addAction(w.event(b))
	}
	b.prepare.waiting++
	ps.conditions = append(ps.conditions, &objectWait{b, w, plugin, ps.now, ps.now.Add(w.within(b))})
	ps.events.objects = true
}

// nextDeadline returns the next deadline, or zero.
func (l objectWaits) nextDeadline() (at time.Time) {
	for _, condition := range l {
		if at.IsZero() || condition.deadline.Before(at) {
			at = condition.deadline
		}
	}
	return at
}

// reportWait reports the result of a wait to the metrics.
func (ps *placements) reportWait(one *objectWait, how string) {
	if one.over != nil {
		one.over(ps, one.placement, how, ps.now.Sub(one.began))
	}
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

// reserveVolumes matches volumes with the pod's claims, and assumes the matches in the cluster
// model. The returned function undoes the assumption. The function is nil if no writes are needed.
func (ps *placements) reserveVolumes(b *placement, plugin plugins.VolumeReserver, n *cluster.Node) (undo func(), err error) {
	volumes, err := plugin.PodVolumes(ps.cluster, b.Waiting, n)
	if err != nil {
		ps.observer().VolumesFailed("assume")
	}
	if err != nil || len(volumes.Volumes)+len(volumes.Claims) == 0 {
		return nil, err
	}
	b.volumes = volumes
	b.own = append(b.own, ownWork{plugin: plugin.Name(), write: writeVolumes, failed: bindingVolumesFailed, next: volumesBound})
	return volumes.Assume(ps.cluster), nil
}

// bindingVolumesFailed counts a failure to write volumes, or a timeout while waiting for their
// binding.
func bindingVolumesFailed(ps *placements) { ps.observer().VolumesFailed("bind") }

// writeVolumes creates the action for the volumes matched by reserveVolumes.
func writeVolumes(b *placement, ticket Ticket) Action {
	return WriteVolumes{ticket, &b.Attempt, b.volumes}
}

// reserveDevices allocates the pod's devices in the cluster model. The returned function undoes the
// allocation, including the writes made in the meantime.
func (ps *placements) reserveDevices(b *placement, plugin plugins.ClaimReserver, n *cluster.Node) (undo func(), err error) {
	claims, give, err := plugin.ReserveClaims(ps.cluster, b.Waiting, n)
	if err != nil || len(claims.Claims) == 0 {
		return nil, err
	}

	for i := range claims.Claims {
		// The reservation is about to be released: a pod relying on it would lose its devices.
		if _, releasing := ps.claims.releasing[nameOf(claims.Claims[i].Claim)]; releasing {
			give(func(claim *resourcev1.ResourceClaim) bool { return wasReserved(claims.Claims, claim) })
			return nil, fmt.Errorf("resource claim %s/%s is being deallocated", b.Pod.Namespace, claims.Claims[i].Claim.Name)
		}
	}

	b.devices.ReservedClaims = claims
	b.own = append(b.own, ownWork{plugin: plugin.Name(), write: writeClaims, written: claimsWritten, next: devicesReady})
	for i := range claims.Claims {
		use := ps.claims.addUser(&claims.Claims[i])
		b.devices.uses, b.devices.shared = append(b.devices.uses, use), append(b.devices.shared, use.sharedClaim)
	}
	return func() { ps.unreserveDevices(b, give) }, nil
}

// writeClaims creates the action for the devices allocated by reserveDevices.
func writeClaims(b *placement, ticket Ticket) Action {
	work := b.devices.ReservedClaims
	work.Claims = slices.Clone(work.Claims) // sharedClaims.replacePlaceholder changes the original slice
	return WriteClaims{ticket, &b.Attempt, work, b.claimUses()}
}

// claimsWritten records the written claims, even if other claims failed. It ends the pod's use of
// its shared claims. An allocation not written by this or another pod is undone.
func claimsWritten(ps *placements, b *placement, o Outcome) {
	b.devices.written = append(b.devices.written, o.Claims...)
	for i, use := range b.devices.uses {
		if i < len(o.Written) && o.Written[i] {
			use.written, use.reserved = true, use.reserved || b.devices.Claims[i].ForGroup()
		}
	}
	ps.tellGivenBack(b, ps.claims.endUse)
}

// usesOf counts the pod's uses of a claim. It returns 0 after the uses have ended.
func (w *deviceWork) usesOf(shared *sharedClaim) (n int) {
	for i := range w.uses {
		if w.uses[i].sharedClaim == shared {
			n++
		}
	}
	return n
}

// unreserveDevices undoes both the allocations in the cluster model and the written claims. give
// undoes the allocations in the cluster model, except for the claims selected by its argument:
//
//   - written claims, and claims with a possibly written allocation, stay unchanged until a watch
//     shows the result of ReleaseClaim;
//   - claims of the pod's group stay while another member uses them, or their reservation is or may
//     be in the API.
func (ps *placements) unreserveDevices(b *placement, give func(func(*resourcev1.ResourceClaim) bool)) {
	stay, ofGroup := map[types.UID]bool{}, map[types.UID]bool{}
	var reserved []*plugins.ReservedClaim // claims reserved for the group in the API
	for _, claim := range b.devices.written {
		stay[claim.UID] = true
	}
	for i := range b.devices.Claims {
		r, shared := &b.devices.Claims[i], b.devices.shared[i]
		if r.Allocated && shared.decided && shared.written {
			stay[r.Claim.UID] = true
		}
		if !r.ForGroup() {
			continue
		}
		ofGroup[r.Claim.UID] = true
		stay[r.Claim.UID] = stay[r.Claim.UID] || shared.members > b.devices.usesOf(shared) || shared.inAPI()
		if shared.inAPI() {
			reserved = append(reserved, r)
		}
	}
	give(func(claim *resourcev1.ResourceClaim) bool { return stay[claim.UID] })
	for i, shared := range b.devices.shared {
		shared.added = shared.added && (!b.devices.Claims[i].ForGroup() || stay[b.devices.Claims[i].Claim.UID])
	}
	// From here on, b.devices.uses is nil; shared still lists the claims.
	ps.claims.endUse(b)
	for _, claim := range b.devices.written {
		if !ofGroup[claim.UID] {
			ps.addAction(ReleaseClaim{Claim: claim, Holder: b.Pod.UID})
		}
	}
	if b.stage != reserving && !ps.groupUses(b) { // a placement that was only tried has changed nothing in the API
		ps.claims.releaseClaims(reserved)
	}
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

// wasReserved reports whether a claim was reserved for the pod's group before the pod used it.
func wasReserved(list []plugins.ReservedClaim, claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(list, func(r plugins.ReservedClaim) bool {
		return r.Claim == claim && r.ForGroup() &&
			r.IsReserved(r.Before)
	})
}

// awaitsDevices reports whether an allocated device has binding conditions, which its driver must
// set first.
func awaitsDevices(r plugins.ReservedClaim) bool {
	return r.Claim.Status.Allocation != nil && slices.ContainsFunc(r.Claim.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool { return len(r.BindingConditions) > 0 })
}

// claimUses describes the pod's use of its claims for a WriteClaims.
func (b *placement) claimUses() (list []ClaimUse) {
	for _, use := range b.devices.uses {
		list = append(list, ClaimUse{Shared: use.number, Decided: use.decided, Written: use.written, Joined: use.joined})
	}
	return list
}

// groupUses reports whether another pod of the placement's group is on a node or being placed on
// one. Hypothetical placements do not count.
func (ps *placements) groupUses(b *placement) bool {
	g := ps.groups.Get(cluster.Name{Namespace: b.Pod.Namespace, Name: groups.NameOf(b.Pod)})
	if g == nil {
		return false
	}
	for uid := range g.Members {
		switch other := ps.byPod[uid]; {
		case other == b:
		case other != nil, ps.cluster.Pod(uid) != nil && ps.queue.Get(uid) == nil:
			return true
		}
	}
	return false
}

// isUnused returns a function that reports whether a claim reserved for the group of a pending pod
// can be given up.
func (ps *placements) isUnused(b *placement) func(claim *resourcev1.ResourceClaim) bool {
	return func(claim *resourcev1.ResourceClaim) bool {
		name := nameOf(claim)
		if shared := ps.claims.byName[name]; shared != nil && (shared.decided || shared.added) {
			return false // the API does not have its allocation or reservation yet
		}
		_, releasing := ps.claims.releasing[name]
		return !releasing && !ps.groupUses(b)
	}
}

// endUse ends the pod's use of its claims. It undoes an allocation that is not in the API and will
// not be written by another pod.
func (l *sharedClaims) endUse(b *placement) {
	for i, use := range b.devices.uses {
		shared := use.sharedClaim
		shared.users--
		if b.devices.Claims[i].ForGroup() {
			shared.members--
		}
		claim, ok := l.cluster.ResourceClaims.Get(shared.name.Namespace, shared.name.Name)
		switch {
		// Nothing to undo: the API has the allocation, or none was decided.
		case !shared.decided:
		case !ok, claim.UID != shared.uid, claim.Status.Allocation == nil:
			shared.decided = false
		// The last user is removed, and the allocation will never be written: the devices are free
		// again.
		case shared.users == 0 && !shared.written:
			shared.decided = false
			claim = claim.DeepCopy()
			claim.Status = resourcev1.ResourceClaimStatus{}
			l.cluster.ResourceClaims.Set(claim)
		}
		l.dropUnused(shared)
	}

	b.devices.uses = nil
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

// releaseReserved releases all reservations. Reservations made in the same step have blocked no
// other pod, and need no event.
func (ps *placements) releaseReserved(b *placement) {
	if b.stage == reserving {
		ps.giveBack(b)
		return
	}
	ps.tellGivenBack(b, ps.giveBack)
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
