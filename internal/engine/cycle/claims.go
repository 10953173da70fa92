package cycle

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// sharedClaim is a claim that pods on their way to their nodes use. Whichever of them is ready
// first writes the allocation, and each adds its own reservation to what the one before it has
// written.
type sharedClaim struct {
	number uint64 // names it in actions
	name   cluster.Name
	uid    types.UID
	users  int // pods that have not left it
	// decided tells that the allocation is decided and no watch has shown it yet. What the watch
	// shows meanwhile of the claim must not give its devices to others.
	decided bool
	// written tells that the allocation is in the API, or may be. If it is not there later,
	// somebody has taken it back, and its devices may be another claim's.
	written bool
}

// sharedClaims are those that pods use, or that are decided.
type sharedClaims struct {
	byName map[cluster.Name]*sharedClaim
	last   uint64 // number given out
}

// claimUse is what one pod has to do with a shared claim.
type claimUse struct {
	*sharedClaim
	// decided tells that the allocation was not in the API yet, as far as was known, when the pod's
	// node was chosen.
	decided bool
}

// join adds a pod that has reserved the claim.
func (l *sharedClaims) join(reserved *plugins.ReservedClaim) claimUse {
	name := nameOf(reserved.Claim)
	shared := l.byName[name]
	if shared == nil || shared.uid != reserved.Claim.UID || reserved.Allocated {
		l.last++
		shared = &sharedClaim{number: l.last, name: name, uid: reserved.Claim.UID, decided: reserved.Allocated}
		if reserved.Before != nil { // else its name is not known yet
			l.byName[name] = shared
		}
	}
	shared.users++
	return claimUse{shared, shared.decided}
}

func (l *sharedClaims) forget(shared *sharedClaim) {
	if shared.users == 0 && !shared.decided && l.byName[shared.name] == shared {
		delete(l.byName, shared.name)
	}
}

// seeClaim takes in a claim that the API shows, and returns it as it is to be kept.
func (c *Core) seeClaim(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	shared, ok := c.claims.byName[nameOf(claim)]
	if !ok || !shared.decided {
		return claim
	}
	known, ok := c.cluster.ResourceClaims.Get(claim.Namespace, claim.Name)
	if !ok || shared.uid != claim.UID || claim.Status.Allocation != nil || claim.DeletionTimestamp != nil {
		shared.decided = false
		c.claims.forget(shared)
		return claim
	}
	claim = claim.DeepCopy()
	claim.Status = *known.Status.DeepCopy()
	return claim
}

// leaveClaims says that the pod writes its claims no more. An allocation that is in the API nowhere
// and that nobody is left to write is none.
func (c *Core) leaveClaims(b *placement) {
	for _, use := range b.devices.uses {
		shared := use.sharedClaim
		shared.users--
		claim, ok := c.cluster.ResourceClaims.Get(shared.name.Namespace, shared.name.Name)
		switch {
		case !shared.decided:
		case !ok, claim.UID != shared.uid, claim.Status.Allocation == nil:
			shared.decided = false
		case shared.users == 0 && !shared.written:
			shared.decided = false
			claim = claim.DeepCopy()
			claim.Status = resourcev1.ResourceClaimStatus{}
			c.cluster.ResourceClaims.Set(claim)
		}
		c.claims.forget(shared)
	}
	b.devices.uses = nil
}

// uses are those of a pod's claims as WriteClaims tells of them.
func (b *placement) uses() (list []ClaimUse) {
	for _, use := range b.devices.uses {
		list = append(list, ClaimUse{Shared: use.number, Decided: use.decided, Written: use.written})
	}
	return list
}

// claimMade puts a claim that was made for a pod's extended resources in the place of what stood in
// for it.
func (c *Core) claimMade(e ClaimMade) {
	errand, ok := c.errands[e.Ticket].(preBindErrand)
	if !ok {
		return
	}
	b := errand.placement
	for i, use := range b.devices.uses {
		r := &b.devices.Claims[i]
		if nameOf(r.Claim) != e.StandIn {
			continue
		}
		held := e.Claim.DeepCopy()
		held.Status = *r.Claim.Status.DeepCopy()
		r.Claim = held
		c.cluster.ResourceClaims.Delete(e.StandIn.Namespace, e.StandIn.Name)
		if current, ok := c.cluster.ResourceClaims.Get(held.Namespace, held.Name); !ok || current.Status.Allocation == nil {
			use.name, use.uid = nameOf(held), held.UID
			c.claims.byName[use.name] = use.sharedClaim
			c.cluster.ResourceClaims.Set(held)
		}
	}
}
