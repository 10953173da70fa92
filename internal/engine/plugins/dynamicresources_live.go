package plugins

import (
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// ReservedClaim is a claim that has to be written for a pod.
type ReservedClaim struct {
	// Claim is the claim with its allocation, and with the holder in its reservedFor.
	Claim *resourcev1.ResourceClaim
	// Holder is whom the claim is reserved for: the pod, or its pod group.
	Holder resourcev1.ResourceClaimConsumerReference
	// Before is the claim as it was; nil if it does not exist.
	Before *resourcev1.ResourceClaim
	// Allocated: the allocation is new.
	Allocated bool
	// Extended: the claim is for the pod's extended resources. If it does not exist yet, its name
	// is a placeholder for the one that the API server will generate.
	Extended bool
}

// ReservedClaims are those of one pod.
type ReservedClaims struct {
	Claims []ReservedClaim
	// Mappings are the devices that satisfy each container's extended resources.
	Mappings []v1.ContainerExtendedResourceRequest
	// Timeout is how long devices may take to become ready.
	Timeout time.Duration
}

// ClaimReserver is a [Reserver] of devices: allocations and reservations are written to the API
// before the pod is bound, and devices that ask for it are waited for. The clock is that of the
// timestamps in claims.
type ClaimReserver interface {
	Reserver
	ReserveClaims(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (
		reserved ReservedClaims, undo func(is func(*resourcev1.ResourceClaim) bool), err error,
	)
	SetClock(now func() time.Time)
	// LeftClaim reports whether an earlier attempt left a claim for the pod's extended resources.
	// Nodes reject such a pod for its own reason, unlike others of its class.
	LeftClaim(c *cluster.Cluster, p *cluster.Pod) bool
}

// SetClock implements [ClaimReserver]. It has to be called before the plugin is asked anything.
func (d *DynamicResources) SetClock(now func() time.Time) { d.Now = now }

// ReserveClaims is Reserve for a caller that writes the claims to the API. undo takes back the
// reservation of every claim except for those that is returns true for: the ones that have been
// written.
func (d *DynamicResources) ReserveClaims(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (
	reserved ReservedClaims, undo func(is func(*resourcev1.ResourceClaim) bool), err error,
) {
	if !needsDevices(c, p) {
		return ReservedClaims{}, nil, nil
	}
	a := d.attemptFor(c, p)
	switch {
	case a.err != nil:
		return ReservedClaims{}, nil, a.err
	case a.rejection != nil:
		return ReservedClaims{}, nil, errors.New(a.rejection.Reasons[0])
	case len(a.claims) == 0:
		return ReservedClaims{}, nil, nil
	}

	o := a.chosenOffer(p, n)
	if o.rejection != nil {
		if o.rejection.Err != nil {
			return ReservedClaims{}, nil, o.rejection.Err
		}
		return ReservedClaims{}, nil, fmt.Errorf("claim allocation not found for node %s: %s", n.Name, o.rejection.Reasons[0])
	}

	changed, err := d.reservedClaims(a, &o)
	if err != nil {
		return ReservedClaims{}, nil, err
	}

	all := ReservedClaims{Mappings: o.mappings, Timeout: d.bindingTimeout}
	// What was in the API, to compare with when the claims are written. The claim for extended
	// resources is in it only if an earlier attempt left one: in memory it has another name.
	before := map[cluster.Name]*resourcev1.ResourceClaim{}
	for _, claim := range a.claims {
		before[cluster.Name{Namespace: claim.Namespace, Name: claim.Name}] = claim
	}

	// In the cluster at once, before anything is written: the next pod must see the devices as
	// taken.
	for _, claim := range changed {
		was := before[cluster.Name{Namespace: claim.Namespace, Name: claim.Name}]
		all.Claims = append(all.Claims, ReservedClaim{
			Claim: claim, Before: was, Holder: a.holders[a.indexOf(claim)], Allocated: was == nil || was.Status.Allocation == nil,
			Extended: was == nil || a.extended != nil && was == a.extended,
		})
		c.ResourceClaims.Set(claim)
	}

	return all, func(is func(*resourcev1.ResourceClaim) bool) { a.unreserveClaims(slices.DeleteFunc(changed, is)) }, nil
}

// ErrDeviceBinding is wrapped by the error of [Ready].
var ErrDeviceBinding = errors.New("device binding failed")

// Ready reports whether the devices of a claim can be used. An error says that one never will be,
// in the words of its driver.
func Ready(claim *resourcev1.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		return false, nil
	}
	ready, failure := deviceReadiness(claim)
	if failure != nil {
		return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", ErrDeviceBinding, claim.Name, failure.Reason, failure.Message)
	}
	return ready, nil
}
