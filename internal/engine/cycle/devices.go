// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// This file reserves the devices of a placement, writes its claims before the binding, waits for
// the drivers, and releases the claims if the placement fails. Claims shared by several pods are in
// claims.go.

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
			give(claims.WasReserved)
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

// WriteClaims writes the allocations and reservations of the pod's device claims. Even if a later
// claim fails, its Outcome lists the claims already written, because their allocations and
// reservations must be released.
type WriteClaims struct {
	Ticket  Ticket
	Attempt *Attempt
	Claims  plugins.ReservedClaims
	Uses    []ClaimUse // the uses of Claims, in the same order
}

func (a WriteClaims) String() string {
	var names []string
	for i := range a.Claims.Claims {
		c := &a.Claims.Claims[i]
		name := c.Claim.Name
		if c.Allocated && c.Claim.Status.Allocation != nil {
			for _, r := range c.Claim.Status.Allocation.Devices.Results {
				name += fmt.Sprintf(" %s=%s/%s/%s", r.Request, r.Driver, r.Pool, r.Device)
			}
		}
		names = append(names, name)
	}
	return fmt.Sprintf("write claims of %s #%d: %s", a.Attempt, a.Ticket, strings.Join(names, ", "))
}

// writeClaims creates the action for the devices allocated by reserveDevices.
func writeClaims(b *placement, ticket Ticket) Action {
	work := b.devices.ReservedClaims
	work.Claims = slices.Clone(work.Claims) // replacePlaceholder changes the original slice
	return WriteClaims{ticket, &b.Attempt, work, b.claimUses()}
}

// claimUses describes the pod's use of its claims for a WriteClaims.
func (b *placement) claimUses() (list []ClaimUse) {
	for _, use := range b.devices.uses {
		list = append(list, ClaimUse{Shared: use.number, Decided: use.decided, Written: use.written, Joined: use.joined})
	}
	return list
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
	ps.tellGivenBack(b, func() { ps.claims.endUse(&b.devices) })
}

// ClaimMade reports the creation of the claim for a pod's extended resources, which replaces its
// placeholder. The event precedes the outcome of the WriteClaims.
type ClaimMade struct {
	Ticket  Ticket
	StandIn cluster.Name
	Claim   *resourcev1.ResourceClaim
}

// replacePlaceholder replaces a placeholder with the claim created for a pod's extended resources.
func (ps *placements) replacePlaceholder(e ClaimMade) {
	b := ps.handlers[e.Ticket].placement
	if b == nil {
		return
	}
	for i, use := range b.devices.uses {
		r := &b.devices.Claims[i]
		if nameOf(r.Claim) != e.StandIn {
			continue
		}
		// The created claim is still unallocated. It gets the allocation decided for the
		// placeholder.
		held := e.Claim.DeepCopy()
		held.Status = *r.Claim.Status.DeepCopy()
		r.Claim = held
		ps.cluster.ResourceClaims.Delete(e.StandIn.Namespace, e.StandIn.Name)
		if current, ok := ps.cluster.ResourceClaims.Get(held.Namespace, held.Name); !ok || current.Status.Allocation == nil {
			use.name, use.uid = nameOf(held), held.UID
			ps.claims.byName[use.name] = use.sharedClaim
			ps.cluster.ResourceClaims.Set(held)
		}
	}
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

// awaitsDevices reports whether an allocated device has binding conditions, which its driver must
// set first.
func awaitsDevices(r plugins.ReservedClaim) bool {
	return r.Claim.Status.Allocation != nil && slices.ContainsFunc(r.Claim.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool { return len(r.BindingConditions) > 0 })
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
	ps.claims.endUse(&b.devices)
	for _, claim := range b.devices.written {
		if !ofGroup[claim.UID] {
			ps.addAction(ReleaseClaim{Claim: claim, Holder: b.Pod.UID})
		}
	}
	if b.stage != reserving && !ps.groupUses(b) { // a placement that was only tried has changed nothing in the API
		ps.claims.releaseClaims(reserved)
	}
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
		case other != nil, ps.cluster.Pod(uid) != nil && ps.pendingItem(uid) == nil:
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
