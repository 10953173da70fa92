package cycle

import (
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// conditions are what placements wait for in the cluster's objects, in the order in which the waits
// began. They are checked when an object has changed that one of them may depend on: see
// happenings.objects.
type conditions []*condition

// condition is one wait. It is met when the plugin's objects are as the placement needs them.
type condition struct {
	*placement
	waitFor
	plugin          string
	began, deadline time.Time
}

// waitFor is a kind of condition.
type waitFor struct {
	late   string                  // the error if it is not met by the deadline
	needed func(b *placement) bool // nil: always
	told   func(b *placement) Tell // of the event when the wait begins; nil: none
	within func(b *placement) time.Duration
	met    func(c *cluster.Cluster, b *placement) (bool, error)
	// over reports how the wait ended: success, failure, timeout or error; nil: nobody asks.
	over func(ps *placements, b *placement, how string, took time.Duration)
}

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
// needed.
func (ps *placements) awaitCondition(b *placement, plugin string, w waitFor) {
	if w.needed != nil && !w.needed(b) {
		return
	}
	if w.told != nil {
		ps.addAction(w.told(b))
	}
	b.prepare.waiting++
	ps.conditions = append(ps.conditions, &condition{b, w, plugin, ps.now, ps.now.Add(w.within(b))})
	ps.news.objects = true
}

// nextDeadline is the next deadline; zero if there is none.
func (l conditions) nextDeadline() (at time.Time) {
	for _, condition := range l {
		if at.IsZero() || condition.deadline.Before(at) {
			at = condition.deadline
		}
	}
	return at
}

// checkConditions ends the waits whose condition is met, has failed, or is overdue.
func (ps *placements) checkConditions() {
	looked := ps.news.objects
	ps.news.objects = false
	for _, one := range slices.Clone(ps.conditions) {
		b := one.placement
		if !slices.Contains(ps.conditions, one) { // dropped because another condition of its placement failed
			continue
		}
		met, err := false, error(nil)
		if looked {
			met, err = one.met(ps.cluster, b)
		}
		var fault *Fault
		how := "success"
		switch {
		case errors.Is(err, plugins.ErrDeviceBinding):
			fault, how = faultOf(err), "failure"
		case err != nil:
			fault, how = faultOf(err), "error"
		case met:
		case !one.deadline.After(ps.now):
			fault, how = &Fault{Message: one.late}, "timeout"
		default:
			continue
		}
		ps.reportWait(one, how)
		ps.conditions = slices.DeleteFunc(ps.conditions, func(other *condition) bool { return other == one })
		b.prepare.waiting--
		ps.workDone(b, one.plugin, fault)
	}
}

func (ps *placements) reportWait(one *condition, how string) {
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
	ps.conditions = slices.DeleteFunc(ps.conditions, func(c *condition) bool { return c.placement == b })
	b.prepare.waiting = 0
}

// reserveVolumes matches the pod's volumes and assumes them in the cluster model.
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

func bindingVolumesFailed(ps *placements) { ps.observer().VolumesFailed("bind") }

func writeVolumes(b *placement, ticket Ticket) Action {
	return WriteVolumes{ticket, &b.Attempt, b.volumes}
}

// deviceWork is what has to be written about a pod's devices before it is bound.
type deviceWork struct {
	plugins.ReservedClaims
	uses    []claimUse                  // of Claims, in their order; nil once the pod has left them
	written []*resourcev1.ResourceClaim // claims written so far, as the API server returned them
	shared  []*sharedClaim              // of Claims, also once the pod has left them
}

// reserveDevices allocates the pod's devices in the cluster model.
func (ps *placements) reserveDevices(b *placement, plugin plugins.ClaimReserver, n *cluster.Node) (undo func(), err error) {
	claims, give, err := plugin.ReserveClaims(ps.cluster, b.Waiting, n)
	if err != nil || len(claims.Claims) == 0 {
		return nil, err
	}

	for i := range claims.Claims {
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

func writeClaims(b *placement, ticket Ticket) Action {
	work := b.devices.ReservedClaims
	work.Claims = slices.Clone(work.Claims) // sharedClaims.replaceStandIn changes them
	return WriteClaims{ticket, &b.Attempt, work, b.claimUses()}
}

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

// unreserveDevices undoes what was decided and what was already written.
func (ps *placements) unreserveDevices(b *placement, give func(func(*resourcev1.ResourceClaim) bool)) {
	stay, ofGroup := map[types.UID]bool{}, map[types.UID]bool{}
	var reserved []*plugins.ReservedClaim // for the group, in the API
	for _, claim := range b.devices.written {
		stay[claim.UID] = true
	}
	for i := range b.devices.Claims {
		r, shared := &b.devices.Claims[i], b.devices.shared[i]
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

func awaitsDevices(r plugins.ReservedClaim) bool {
	return r.Claim.Status.Allocation != nil && slices.ContainsFunc(r.Claim.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool { return len(r.BindingConditions) > 0 })
}
