package live

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
)

// sharedClaim is a claim that pods on their way to their nodes use. Whichever of them is ready first writes the allocation, and
// each adds its own reservation to what the one before it has written.
type sharedClaim struct {
	// Of the owner:
	name  cluster.Name
	uid   types.UID
	users int // pods that have not left it
	// decided tells that the allocation is decided and no watch has shown it yet. What the watch shows meanwhile of the claim must not
	// give its devices to others.
	decided bool

	// written tells that the allocation is in the API, or may be. If it is not there later, somebody has taken it back, and its
	// devices may be another claim's.
	written atomic.Bool
	// turn holds one token: who has it writes. newest is the claim as the API server answered last, and belongs to who writes.
	turn   chan struct{}
	newest *resourcev1.ResourceClaim
}

// claimUse is what one pod has to do with a shared claim.
type claimUse struct {
	*sharedClaim
	// decided tells that the allocation was not in the API yet, as far as was known, when the pod's node was chosen.
	decided bool
}

// sharedClaims are those that pods use, or that are decided. They belong to the owner.
type sharedClaims map[cluster.Name]*sharedClaim

// join adds a pod that has reserved the claim.
func (l sharedClaims) join(reserved *plugins.ReservedClaim) claimUse {
	name := nameOf(reserved.Claim)
	shared := l[name]
	if shared == nil || shared.uid != reserved.Claim.UID || reserved.Allocated {
		shared = &sharedClaim{name: name, uid: reserved.Claim.UID, turn: make(chan struct{}, 1), decided: reserved.Allocated}
		shared.turn <- struct{}{}
		if reserved.Before != nil { // else its name is not known yet
			l[name] = shared
		}
	}
	shared.users++
	return claimUse{shared, shared.decided}
}

func (l sharedClaims) forget(shared *sharedClaim) {
	if shared.users == 0 && !shared.decided && l[shared.name] == shared {
		delete(l, shared.name)
	}
}

// watchedClaim takes in a claim that the API shows.
func (s *Scheduler) watchedClaim(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	shared, ok := s.claims[nameOf(claim)]
	if !ok || !shared.decided {
		return claim
	}
	known, ok := s.cluster.ResourceClaims.Get(claim.Namespace, claim.Name)
	if !ok || shared.uid != claim.UID || claim.Status.Allocation != nil || claim.DeletionTimestamp != nil {
		shared.decided = false
		s.claims.forget(shared)
		return claim
	}
	claim = claim.DeepCopy()
	claim.Status = *known.Status.DeepCopy()
	return claim
}

// leaveClaims says that the pod writes its claims no more. An allocation that is in the API nowhere and that nobody is left to write
// is none.
func (s *Scheduler) leaveClaims(b *placement) {
	for _, use := range b.devices.uses {
		shared := use.sharedClaim
		shared.users--
		claim, ok := s.cluster.ResourceClaims.Get(shared.name.Namespace, shared.name.Name)
		switch {
		case !shared.decided:
		case !ok, claim.UID != shared.uid, claim.Status.Allocation == nil:
			shared.decided = false
		case shared.users == 0 && !shared.written.Load():
			shared.decided = false
			claim = claim.DeepCopy()
			claim.Status = resourcev1.ResourceClaimStatus{}
			s.cluster.ResourceClaims.Set(claim)
		}
		s.claims.forget(shared)
	}
	b.devices.uses = nil
}

// await waits for the turn to write.
func (c *sharedClaim) await(ctx context.Context) error {
	select {
	case <-c.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *sharedClaim) pass() { c.turn <- struct{}{} }

// fill puts allocation and reservation into a claim, as it is in the API.
func (u claimUse) fill(claim *resourcev1.ResourceClaim, reserved *plugins.ReservedClaim, pod *v1.Pod) error {
	decided := reserved.Claim.Status.Allocation
	switch {
	case claim.DeletionTimestamp != nil:
		return fmt.Errorf("claim %s got deleted in the meantime", klog.KObj(claim))
	case claim.Status.Allocation == nil && u.decided && !u.written.Load():
		claim.Status.Allocation = decided.DeepCopy()
	case claim.Status.Allocation == nil:
		return fmt.Errorf("claim %s got deallocated elsewhere in the meantime", klog.KObj(claim))
	case u.decided && !slices.EqualFunc(claim.Status.Allocation.Devices.Results, decided.Devices.Results, sameDevice):
		return fmt.Errorf("claim %s got allocated elsewhere in the meantime", klog.KObj(claim))
	default:
		u.written.Store(true)
	}
	if claim.Status.Allocation.AllocationTimestamp == nil {
		now := metav1.NewTime(time.Now())
		claim.Status.Allocation.AllocationTimestamp = &now
	}
	if !resourceclaim.IsReservedForPod(pod, claim, false) {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: pod.Name, UID: pod.UID,
		})
	}
	return nil
}

func sameDevice(a, b resourcev1.DeviceRequestAllocationResult) bool {
	return a.Request == b.Request && a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device
}
