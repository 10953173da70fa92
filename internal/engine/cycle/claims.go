package cycle

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// sharedClaim is a claim used by pods on their way to a node. The first of them that is ready
// writes the allocation, and each adds its own reservation to what the previous one wrote. A claim
// from a template has one user; one that pods name, or that is reserved for their group, may have
// many.
type sharedClaim struct {
	number uint64 // identifies it in actions
	name   cluster.Name
	uid    types.UID
	users  int // pods that still use it
	// decided: the allocation was decided and no watch has shown it yet. Until then, what a watch
	// shows of the claim must not free its devices for others.
	decided bool
	// written: the allocation is or may be in the API. If it is missing later, it was revoked, and
	// its devices may belong to another claim.
	written bool
	// members are those of the users for whose group the claim is reserved. added: one of them has
	// added that reservation. reserved: it is or may be in the API since.
	members         int
	added, reserved bool
}

// inAPI tells whether the reservation for a member's group is or may be in the API.
func (s *sharedClaim) inAPI() bool { return s.reserved || !s.added }

// sharedClaims are the claims in use or decided.
//
// A claim is in byName as long as a pod on its way to a node uses it, or its allocation was decided
// and no watch has shown it. Nothing else may take its devices until then.
type sharedClaims struct {
	*common
	byName map[cluster.Name]*sharedClaim
	last   uint64 // the last number issued
	// releasing has the claims whose reservation for a pod group is being given up, with the UID of
	// the group, until a watch shows that. Until then no pod may rely on the reservation.
	releasing map[cluster.Name]types.UID
}

// claimUse is one pod's use of a shared claim.
type claimUse struct {
	*sharedClaim
	// decided: the allocation was not known to be in the API when the pod's node was chosen.
	decided bool
	// joined: the reservation for the pod's group was there, added by another user.
	joined bool
}

// addUser adds a pod that has reserved the claim.
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

// mergeSeen returns what the cluster model is to keep of a claim that the API shows. While an
// allocation is decided and not written, the API shows the claim without it. Taking that over would
// free the devices, and another pod could be given them. So the known status is kept on top of the
// shown object, until the API shows an allocation, or the claim is being deleted.
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

// forgetGone forgets what is held of a claim that is gone.
func (l *sharedClaims) forgetGone(name cluster.Name) {
	delete(l.releasing, name)
	if shared := l.byName[name]; shared != nil {
		shared.decided = false
		l.dropUnused(shared)
	}
}

// noteReleased notes that a claim is shown without the reservation that is being given up.
func (l *sharedClaims) noteReleased(claim *resourcev1.ResourceClaim) {
	group, ok := l.releasing[nameOf(claim)]
	if ok && !slices.ContainsFunc(claim.Status.ReservedFor,
		func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == group }) {
		delete(l.releasing, nameOf(claim))
	}
}

// releaseErrand takes the answer to the release of a pod group's reservation.
type releaseErrand struct {
	l    *sharedClaims
	name cluster.Name
}

// handleOutcome waits for the watch, unless that has shown the claim as the API server returned it:
// then the reservation was not there.
func (e releaseErrand) handleOutcome(o Outcome) {
	known, ok := e.l.cluster.ResourceClaims.Get(e.name.Namespace, e.name.Name)
	switch {
	case o.Fault != nil || !ok:
		delete(e.l.releasing, e.name)
	case len(o.Claims) > 0 && sameVersion(known, o.Claims[0]):
		e.l.cluster.ResourceClaims.Set(e.l.mergeSeen(o.Claims[0]))
	}
}

// releaseClaims gives up reservations for a pod group that are or may be in the API. A claim that
// is being released already is left out: its answer is outstanding.
func (l *sharedClaims) releaseClaims(list []*plugins.ReservedClaim) {
	for _, r := range list {
		name := nameOf(r.Claim)
		if _, already := l.releasing[name]; !already {
			l.releasing[name] = r.Holder.UID
			l.addAction(ReleaseClaim{l.issueErrand(releaseErrand{l, name}), r.Claim, r.Holder.UID})
		}
	}
}
