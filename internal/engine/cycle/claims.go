// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// sharedClaim is a claim used by pods being placed. The allocation is written by the first pod that
// is ready to write the claim. Each pod then adds its own reservation to the previous pod's result.
// A claim from a template has one user. A claim referenced by name, or reserved for a group, may
// have many users.
type sharedClaim struct {
	number uint64 // identifies the claim in actions
	name   cluster.Name
	uid    types.UID
	users  int // number of pods still using the claim
	// decided: the allocation was decided, but no watch has shown it yet. Until a watch shows it, a
	// watch event without the allocation must not free the claim's devices for other pods.
	decided bool
	// written: the allocation is or may be in the API. If the allocation is missing later, it was
	// revoked, and its devices may belong to another claim.
	written bool
	// members counts the users that reserve the claim for their group rather than for themselves.
	// added: one of these users has added that reservation. reserved: the added reservation is or
	// may be in the API.
	members         int
	added, reserved bool
}

// inAPI reports whether the reservation for a member's group is or may be in the API: a user has or
// may have written it, or it existed before, so that no user added it.
func (s *sharedClaim) inAPI() bool { return s.reserved || !s.added }

// sharedClaims holds the claims in use or decided.
//
// A claim is in byName while a pod being placed uses it, or while its allocation is decided but not
// yet shown by a watch. Until a watch shows the allocation, other claims must not get its devices.
type sharedClaims struct {
	*common
	byName map[cluster.Name]*sharedClaim
	last   uint64 // last claim number issued
	// releasing holds, by claim, the UID of the pod group whose reservation is being released. An
	// entry is removed when a watch shows the release. Until then, no pod may rely on the
	// reservation.
	releasing map[cluster.Name]types.UID
}

// claimUse is one pod's use of a shared claim.
type claimUse struct {
	*sharedClaim
	// decided: when the pod's node was chosen, the allocation was not known to be in the API.
	decided bool
	// joined: another user had already added the reservation for the pod's group.
	joined bool
}

// addUser adds a user of the claim after the pod reserved it.
func (l *sharedClaims) addUser(reserved *plugins.ReservedClaim) claimUse {
	name := nameOf(reserved.Claim)
	shared := l.byName[name]
	if shared == nil || shared.uid != reserved.Claim.UID || reserved.Allocated {
		l.last++
		shared = &sharedClaim{number: l.last, name: name, uid: reserved.Claim.UID, decided: reserved.Allocated}
		if reserved.Before != nil { // otherwise the claim has no name yet
			l.byName[name] = shared
		}
	}
	shared.users++
	use := claimUse{sharedClaim: shared, decided: shared.decided}
	if reserved.ForGroup() {
		shared.members++
		if reserved.IsReserved(reserved.Before) {
			use.joined = shared.added
		} else {
			shared.added = true
		}
	}
	return use
}

// dropUnused drops a claim that is neither in use nor decided.
func (l *sharedClaims) dropUnused(shared *sharedClaim) {
	if shared.users == 0 && !shared.decided && l.byName[shared.name] == shared {
		delete(l.byName, shared.name)
	}
}

// mergeSeen returns the version of a claim to store in the cluster model after a watch event. While
// an allocation is decided but not written, the API shows the claim without the allocation. Storing
// that version would free the devices for other pods. Therefore the stored claim keeps its known
// status until the API shows an allocation or the claim is being deleted.
func (l *sharedClaims) mergeSeen(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	l.noteReleased(claim)
	shared, ok := l.byName[nameOf(claim)]
	if !ok || !shared.decided {
		return claim
	}
	known, ok := l.cluster.ResourceClaims.Get(claim.Namespace, claim.Name)
	if !ok || shared.uid != claim.UID || claim.Status.Allocation != nil || claim.DeletionTimestamp != nil {
		shared.decided = false
		l.dropUnused(shared)
		return claim
	}
	claim = claim.DeepCopy()
	claim.Status = *known.Status.DeepCopy()
	return claim
}

// forgetGone drops the state of a deleted claim.
func (l *sharedClaims) forgetGone(name cluster.Name) {
	delete(l.releasing, name)
	if shared := l.byName[name]; shared != nil {
		shared.decided = false
		l.dropUnused(shared)
	}
}

// noteReleased ends a release once a watch shows the claim without the released reservation.
func (l *sharedClaims) noteReleased(claim *resourcev1.ResourceClaim) {
	group, ok := l.releasing[nameOf(claim)]
	if ok && !slices.ContainsFunc(claim.Status.ReservedFor,
		func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == group }) {
		delete(l.releasing, nameOf(claim))
	}
}

// releaseHandler handles the outcome of the release of a pod group's reservation.
type releaseHandler struct {
	l    *sharedClaims
	name cluster.Name
}

// handleOutcome leaves the update to the watch, unless the watch has already shown the version
// returned by the API server. In that case the reservation did not exist, no watch event will
// follow, and the claim is updated here. After a failure, only the entry is dropped.
func (e releaseHandler) handleOutcome(o Outcome) {
	known, ok := e.l.cluster.ResourceClaims.Get(e.name.Namespace, e.name.Name)
	switch {
	case o.Fault != nil || !ok:
		delete(e.l.releasing, e.name)
	case len(o.Claims) > 0 && sameVersion(known, o.Claims[0]):
		e.l.cluster.ResourceClaims.Set(e.l.mergeSeen(o.Claims[0]))
	}
}

// releaseClaims releases a pod group's reservations that are or may be in the API. It skips claims
// already being released: their outcome is outstanding.
func (l *sharedClaims) releaseClaims(list []*plugins.ReservedClaim) {
	for _, r := range list {
		name := nameOf(r.Claim)
		if _, already := l.releasing[name]; !already {
			l.releasing[name] = r.Holder.UID
			l.addAction(ReleaseClaim{l.issueHandled(releaseHandler{l, name}), r.Claim, r.Holder.UID})
		}
	}
}
