// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
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
	releasing map[cluster.Name]*types.UID
}

// claimUse is one pod's use of a shared claim.
type claimUse struct {
	*sharedClaim
	// decided: when the pod's node was chosen, the allocation was not known to be in the API.
	decided bool
	// joined: another user had already added the reservation for the pod's group.
	joined bool
}

// ClaimUse describes a pod's use of a claim that other pods may share. Pods writing the same claim
// take turns, and each pod starts from the previous pod's result.
type ClaimUse struct {
	Shared uint64 // number shared by all users of the claim
	// Decided: the allocation was not in the API when the node was chosen, so the first user writes
	// it. Written: a user has already written the allocation. If the allocation is missing now, it
	// was revoked and must not be written again.
	Decided, Written bool
	// Joined: another user has already added the reservation for the pod's group in the core. It
	// may not be in the API yet, so this pod's write must include it.
	Joined bool
}

// deviceWork holds the writes of resource claims that must succeed before the pod is bound.
type deviceWork struct {
	plugins.ReservedClaims
	uses    []claimUse                  // uses of Claims, in the same order; nil after the uses have ended
	written []*resourcev1.ResourceClaim // claims written so far, as the API server returned them
	shared  []*sharedClaim              // shared state of Claims, kept after the uses have ended
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

// endUse ends the pod's use of its claims. It undoes an allocation that is not in the API and will
// not be written by another pod.
func (l *sharedClaims) endUse(w *deviceWork) {
	for i, use := range w.uses {
		shared := use.sharedClaim
		shared.users--
		if w.Claims[i].ForGroup() {
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

	w.uses = nil
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

// ReleaseClaim removes a pod's reservation from a device claim, or deletes a claim created for the
// pod. Only the release of a pod group's reservation has a ticket.
type ReleaseClaim struct {
	Ticket Ticket
	Claim  *resourcev1.ResourceClaim
	Holder types.UID // UID of the pod or the PodGroup
}

func (a ReleaseClaim) String() string {
	text := fmt.Sprintf("release claim %s/%s of %s", a.Claim.Namespace, a.Claim.Name, a.Holder)
	if a.Ticket != 0 {
		text += fmt.Sprintf(" #%d", a.Ticket)
	}
	return text
}

// releaseClaims releases a pod group's reservations that are or may be in the API. It skips claims
// already being released: their outcome is outstanding.
func (l *sharedClaims) releaseClaims(list []*plugins.ReservedClaim) {
	for _, r := range list {
		name := nameOf(r.Claim)
		if _, already := l.releasing[name]; !already {
			ticket := l.issueHandled(nil, l.beginRelease(name, r.Holder.UID))
			l.addAction(ReleaseClaim{ticket, r.Claim, r.Holder.UID})
		}
	}
}

// beginRelease records a release, and returns the handler of its outcome, which is ignored after a
// watch has shown the release or the deletion of the claim.
func (l *sharedClaims) beginRelease(name cluster.Name, group types.UID) func(o Outcome) {
	l.releasing[name] = &group
	return func(o Outcome) {
		if l.releasing[name] == &group {
			l.releaseEnded(name, o)
		}
	}
}

// releaseEnded handles the outcome of the release of a pod group's reservation. It leaves the
// update to the watch, unless the watch has already shown the version returned by the API server.
// In that case the reservation did not exist, no watch event will follow, and the claim is updated
// here. After a failure, only the entry is dropped.
func (l *sharedClaims) releaseEnded(name cluster.Name, o Outcome) {
	known, ok := l.cluster.ResourceClaims.Get(name.Namespace, name.Name)
	switch {
	case o.Fault != nil || !ok:
		delete(l.releasing, name)
	case len(o.Claims) > 0 && sameVersion(known, o.Claims[0]):
		l.cluster.ResourceClaims.Set(l.mergeSeen(o.Claims[0]))
	}
}

// noteReleased ends a release once a watch shows the claim without the released reservation.
func (l *sharedClaims) noteReleased(claim *resourcev1.ResourceClaim) {
	group, ok := l.releasing[nameOf(claim)]
	if ok && !slices.ContainsFunc(claim.Status.ReservedFor,
		func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == *group }) {
		delete(l.releasing, nameOf(claim))
	}
}
