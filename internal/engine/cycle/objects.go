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

// This file is what Berth's own plugins do for a placement besides choosing a node: volumes and
// device claims are reserved in the cluster model, written before the pod is bound, awaited, and
// given back if the placement fails. Claims that several pods share are kept in claims.go.

// volumesBound is met when the PV controller, or a provisioner, has bound all claims of the pod. If
// the node goes, the pod returns to the queue.
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

// devicesReady is met when the drivers have set all binding conditions of the allocated devices.
// Most devices have none, and there is nothing to wait for.
var devicesReady = waitFor{
	late:   "device binding timeout",
	needed: func(b *placement) bool { return slices.ContainsFunc(b.devices.Claims, awaitsDevices) },
	told: func(b *placement) Tell {
		return Tell{
			Profile: b.Profile, About: Reference(b.Pod), Type: v1.EventTypeNormal, Reason: "BindingConditionsPending",
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

// awaitCondition makes a placement wait until what was written for a plugin is ready, if that is
// needed. The objects may be ready already: news.objects makes the next tick look.
func (ps *placements) awaitCondition(b *placement, plugin string, w waitFor) {
	if w.needed != nil && !w.needed(b) {
		return
	}
	if w.told != nil {
		ps.addAction(w.told(b))
	}
	b.prepare.waiting++
	ps.conditions = append(ps.conditions, &objectWait{b, w, plugin, ps.now, ps.now.Add(w.within(b))})
	ps.news.objects = true
}

// nextDeadline is the next deadline; zero if there is none.
func (l objectWaits) nextDeadline() (at time.Time) {
	for _, condition := range l {
		if at.IsZero() || condition.deadline.Before(at) {
			at = condition.deadline
		}
	}
	return at
}

// reportWait tells the metrics how a wait ended.
func (ps *placements) reportWait(one *objectWait, how string) {
	if one.over != nil {
		one.over(ps, one.placement, how, ps.now.Sub(one.began))
	}
}

// endWaits ends what a placement waits for, which has come to nothing.
func (ps *placements) endWaits(b *placement) {
	for _, one := range ps.conditions {
		if one.placement == b {
			ps.reportWait(one, "error")
		}
	}
	ps.conditions = slices.DeleteFunc(ps.conditions, func(c *objectWait) bool { return c.placement == b })
	b.prepare.waiting = 0
}

// reserveVolumes matches the pod's volumes and assumes them in the cluster model. The returned
// function undoes it. It is nil if nothing has to be written.
func (ps *placements) reserveVolumes(b *placement, plugin plugins.VolumeReserver, n *cluster.Node) (undo func(), err error) {
	volumes, err := plugin.PodVolumes(ps.cluster, b.Waiting, n)
	if err != nil {
		ps.observer().VolumesFailed("assume")
	}
	if err != nil || len(volumes.Volumes)+len(volumes.Claims) == 0 {
		return nil, err
	}
	b.volumes = volumes
	b.own = append(b.own, ownWork{plugin: plugin.Name(), write: writeVolumes, failed: bindingVolumesFailed, then: volumesBound})
	return volumes.Assume(ps.cluster), nil
}

// bindingVolumesFailed counts a failure to write volumes, or to have them bound in time.
func bindingVolumesFailed(ps *placements) { ps.observer().VolumesFailed("bind") }

// writeVolumes makes the action for what reserveVolumes has matched.
func writeVolumes(b *placement, ticket Ticket) Action {
	return WriteVolumes{ticket, &b.Attempt, b.volumes}
}

// reserveDevices allocates the pod's devices in the cluster model. The returned function undoes it,
// including what has been written by then.
func (ps *placements) reserveDevices(b *placement, plugin plugins.ClaimReserver, n *cluster.Node) (undo func(), err error) {
	claims, give, err := plugin.ReserveClaims(ps.cluster, b.Waiting, n)
	if err != nil || len(claims.Claims) == 0 {
		return nil, err
	}

	for i := range claims.Claims {
		// The reservation is about to go: who relied on it would be left without its devices.
		if _, releasing := ps.claims.releasing[nameOf(claims.Claims[i].Claim)]; releasing {
			give(func(claim *resourcev1.ResourceClaim) bool { return wasReserved(claims.Claims, claim) })
			return nil, fmt.Errorf("resource claim %s/%s is being given back", b.Pod.Namespace, claims.Claims[i].Claim.Name)
		}
	}

	b.devices.ReservedClaims = claims
	b.own = append(b.own, ownWork{plugin: plugin.Name(), write: writeClaims, written: claimsWritten, then: devicesReady})
	for i := range claims.Claims {
		use := ps.claims.addUser(&claims.Claims[i])
		b.devices.uses, b.devices.shared = append(b.devices.uses, use), append(b.devices.shared, use.sharedClaim)
	}
	return func() { ps.unreserveDevices(b, give) }, nil
}

// writeClaims makes the action for what reserveDevices has allocated.
func writeClaims(b *placement, ticket Ticket) Action {
	work := b.devices.ReservedClaims
	work.Claims = slices.Clone(work.Claims) // sharedClaims.replaceStandIn changes them
	return WriteClaims{ticket, &b.Attempt, work, b.claimUses()}
}

// claimsWritten takes in which claims were written, also if others were not. With that the pod's
// use of its shared claims ends: an allocation that neither this pod nor another one writes is
// undone.
func claimsWritten(ps *placements, b *placement, o Outcome) {
	b.devices.written = append(b.devices.written, o.Claims...)
	for i, use := range b.devices.uses {
		if i < len(o.Written) && o.Written[i] {
			use.written, use.reserved = true, use.reserved || b.devices.Claims[i].ForGroup()
		}
	}
	ps.tellGivenBack(b, ps.claims.endUse)
}

// usesOf counts the pod's uses of a claim; 0 once it has left its claims.
func (w *deviceWork) usesOf(shared *sharedClaim) (n int) {
	for i := range w.uses {
		if w.uses[i].sharedClaim == shared {
			n++
		}
	}
	return n
}

// unreserveDevices undoes what was decided and what was already written. give undoes the
// allocations in the cluster model, except of the claims for which the function that it is given
// returns true:
//
//   - claims that were written stay as they are until a watch shows what ReleaseClaim made of them,
//     and so do those whose allocation may have been written;
//   - claims of the pod's group stay while another member uses them, or their reservation is or may
//     be in the API.
func (ps *placements) unreserveDevices(b *placement, give func(func(*resourcev1.ResourceClaim) bool)) {
	stay, ofGroup := map[types.UID]bool{}, map[types.UID]bool{}
	var reserved []*plugins.ReservedClaim // for the group, in the API
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
	if b.stage != reserving && !ps.groupUses(b) { // what was only tried leaves the API as it is
		ps.claims.releaseClaims(reserved)
	}
}

// tellGivenBack calls giveBack, and notes which volumes and devices of the placement are free
// again. Other pods may wait for them, and if they were never written, no watch will show it.
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
			ps.news.addEvent(queue.Event{Resource: queue.Volume, Action: queue.Update, Label: string(queue.Volume) +
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
		ps.news.addEvent(e)
	}
}

// wasReserved tells whether a claim was reserved for the pod's group before the pod used it.
func wasReserved(list []plugins.ReservedClaim, claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(list, func(r plugins.ReservedClaim) bool {
		return r.Claim == claim && r.ForGroup() &&
			r.IsReserved(r.Before)
	})
}

// awaitsDevices tells whether an allocated device has conditions that its driver has to set first.
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

// groupUses tells whether a pod of the placement's group, other than the placement's own, is on its
// way to a node, or on one. Pods that are only being tried do not count.
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

// isUnused returns a function that tells whether a claim which is reserved for the group of a
// pending pod can be given up.
func (ps *placements) isUnused(b *placement) func(claim *resourcev1.ResourceClaim) bool {
	return func(claim *resourcev1.ResourceClaim) bool {
		name := nameOf(claim)
		if shared := ps.claims.byName[name]; shared != nil && (shared.decided || shared.added) {
			return false // it is not in the API
		}
		_, releasing := ps.claims.releasing[name]
		return !releasing && !ps.groupUses(b)
	}
}

// endUse ends the pod's use of its claims. An allocation that is not in the API, and that no
// other pod will write, is undone.
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
		// The last user goes, and no one will write the allocation: the devices are free again.
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

// releaseReserved gives back all reservations. What was reserved in the same step has kept no other
// pod out, so that it is not worth an event.
func (ps *placements) releaseReserved(b *placement) {
	if b.stage == reserving {
		ps.giveBack(b)
		return
	}
	ps.tellGivenBack(b, ps.giveBack)
}

// takeBack ends a placement that failed; the pod returns to the queue.
func (ps *placements) takeBack(b *placement, err error) {
	ps.releaseReserved(b)
	ps.uncountPod(b)
	b.endAttempt(false)
	ps.outcome.requeuePlacement(b, err)
}

// dropPlacement ends a placement whose pod no longer needs one.
func (ps *placements) dropPlacement(b *placement) {
	ps.releaseReserved(b)
	b.endAttempt(false)
}
